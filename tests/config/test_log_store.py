"""`logs.store`: each wrong combination is one line that names the key, what was found and what is accepted."""

from datetime import timedelta
from importlib import resources
from pathlib import Path

import pytest
import yaml

from relight.config.log_store import LogStoreSettings, StoreKind
from relight.config.settings import ConfigError, Settings, load

LABELS = {"filename": "{path}"}
LOKI = {"kind": "loki", "url": "https://logs.example", "labels": LABELS}
VICTORIA = {**LOKI, "kind": "victorialogs"}


def read(tmp_path: Path, store: dict[str, object]) -> Settings:
    path = tmp_path / "relight.yaml"
    path.write_text(yaml.safe_dump({"logs": {"store": store}}))
    return load(path, environment={})


def test_outputs_are_files_unless_a_site_says_otherwise():
    """No store, and nothing of one."""
    assert Settings().logs.store.kind is StoreKind.FILES


def test_the_defaults_file_shows_every_key():
    """Who reads it sees all there is to decide."""
    text = resources.files("relight.config").joinpath("defaults.yaml").read_text(encoding="utf-8")
    assert set(yaml.safe_load(text)["logs"]["store"]) == set(LogStoreSettings.model_fields)


def test_a_store(tmp_path: Path):
    """All that a site says of it."""
    found = read(tmp_path, {**VICTORIA, "tenant": "3:7", "fields": {"job": "{job_id}"}, "late": "PT2S"}).logs.store
    assert (found.kind, found.tenant, found.fields) == (StoreKind.VICTORIALOGS, "3:7", {"job": "{job_id}"})
    assert (found.late, found.reach, found.page) == (timedelta(seconds=2), timedelta(days=7), 5000)


@pytest.mark.parametrize(
    ("store", "said"),
    [
        ({"kind": "elastic"}, ["logs.store.kind", "'files', 'victorialogs' or 'loki'", "found 'elastic'"]),
        ({"url": "https://logs.example"}, ["logs.store: url is set, but kind is files"]),
        ({"labels": LABELS}, ["logs.store: labels is set, but kind is files"]),
        ({"ca": "/x.pem"}, ["logs.store: ca is set, but kind is files"]),
        ({**LOKI, "url": ""}, ["logs.store: kind loki needs url"]),
        ({**LOKI, "url": "logs.example:3100"}, ["logs.store.url: ", "like https://", "found 'logs.example:3100'"]),
        ({**LOKI, "url": "https://me:pw@logs.example"}, ["logs.store.url: ", "without user, password"]),
        ({**LOKI, "labels": {}}, ["logs.store: labels must say which log is a job's", '{filename: "{path}"}']),
        (
            {**LOKI, "labels": {"cluster": "main"}},
            ["logs.store: no label says which log", "{path}, {name} or {job_id}"],
        ),
        ({**LOKI, "labels": {"user": "{user}"}}, ["logs.store: no label says which log"]),
        ({**LOKI, "labels": {"file": "{file}"}}, ["logs.store: label file: no field {file}", "path, name, folder"]),
        ({**LOKI, "labels": {**LABELS, "team": ""}}, ["logs.store: label team has no value"]),
        ({**LOKI, "labels": {"job-id": "{job_id}"}}, ["logs.store: labels: 'job-id' cannot be Loki's"]),
        ({**LOKI, "fields": {"job": "{job_id}"}}, ["logs.store: fields is for VictoriaLogs"]),
        ({**LOKI, "tenant": "a b"}, ["logs.store: tenant 'a b' cannot be Loki's"]),
        ({**VICTORIA, "tenant": "team"}, ["logs.store: tenant 'team'", "AccountID:ProjectID"]),
        ({**VICTORIA, "fields": LABELS}, ["logs.store: filename is in labels and in fields"]),
        ({**LOKI, "user": "relight"}, ["logs.store: user needs token_file"]),
        ({**LOKI, "page": 3}, ["logs.store.page", "greater than or equal to 16"]),
        ({**LOKI, "late": "PT1H"}, ["logs.store.late", "10 minutes"]),
        ({**LOKI, "reach": "PT1M"}, ["logs.store.reach", "1 hour"]),
        ({**LOKI, "token": "secret"}, ["logs.store.token: no such key", "token_file"]),
    ],
)
def test_errors_say_what_to_change(tmp_path: Path, store: dict[str, object], said: list[str]):
    """In one line."""
    with pytest.raises(ConfigError) as error:
        read(tmp_path, store)
    assert len(str(error.value).splitlines()) == 1
    for words in said:
        assert words in str(error.value)


@pytest.mark.parametrize("kind", ["victorialogs", "loki"])
def test_the_examples_are_read(kind: str):
    """What a site copies is accepted."""
    example = Path(__file__).parents[2] / "examples" / f"relight-{kind}.yaml"
    assert load(example, environment={}).logs.store.kind == kind
