"""Numbers of the retry budget in a site's file: what is beyond reason is refused with its field and line."""

import pytest
import yaml

from relight.config.settings import ConfigError, Settings, load


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ({"retries": {"unknown": -1}}, ["policy.retries.unknown", "greater than or equal to 0", "found -1"]),
        ({"retries": {"gpu": 51}}, ["policy.retries.gpu", "less than or equal to 50", "found 51"]),
        ({"retries": {"user": 1}}, ["policy.retries.user: no such cause; accepted: gpu, node,", "platform"]),
        ({"retries": {"control": 1}}, ["policy.retries.control: no such cause"]),
        ({"backoff": []}, ["policy.backoff: must be a list of 1 to 10 durations", "found []"]),
        ({"backoff": ["5m", "1m"]}, ["policy.backoff: must not shrink: 1m after 5m"]),
        ({"backoff": ["8d"]}, ["policy.backoff[0]: must be from 0s to 7d", "found '8d'"]),
        ({"backoff": [60]}, ["policy.backoff[0]: must be a duration with its unit", "found 60"]),
        ({"exclusions_expire": "0s"}, ["policy.exclusions_expire: must be from 1s to 30d", "found '0s'"]),
        (
            {"rules": [{"match": {"user": "a"}, "set": {"backoff": []}}]},
            ["policy.rules[0].set.backoff: must be a list"],
        ),
    ],
)
def test_absurd_numbers_are_refused(tmp_path, policy, said):
    """Nothing is cut to what would be accepted."""
    path = tmp_path / "relight.yaml"
    path.write_text(yaml.safe_dump({"policy": policy}))
    with pytest.raises(ConfigError) as error:
        load(path)
    for words in (f"{path}:", *said):
        assert words in str(error.value)


def test_a_site_names_only_what_it_changes(tmp_path):
    """The other causes keep their defaults."""
    path = tmp_path / "relight.yaml"
    path.write_text("policy: {retries: {user_code: 0}}\n")
    assert load(path).policy.retries == {**Settings().policy.retries, "user_code": 0}


def test_the_schema_names_every_cause():
    """So that an editor can complete it."""
    shown = Settings.model_json_schema()["$defs"]["PolicySettings"]["properties"]
    assert {"user_code", "unknown", "platform"} < set(shown["retries"]["propertyNames"]["enum"])
    assert (shown["backoff"]["minItems"], shown["backoff"]["maxItems"]) == (1, 10)
