"""Settings: defaults, then the site's file, then variables; and errors that say what to change."""

import os
import re
from datetime import timedelta
from importlib import resources
from pathlib import Path

import pytest
import yaml

from relight.config.settings import ConfigError, PolicySettings, PrometheusSettings, Settings, load, unknown_variables
from relight.domain.plan import Mode
from relight.domain.policy import Policy


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch):
    """What this shell has set is not part of the tests."""
    for name in [name for name in os.environ if name.startswith("RELIGHT_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def site(tmp_path):
    """Writes a site's file; text as it is, values as YAML."""

    def write(content):
        path = tmp_path / "relight.yaml"
        path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
        return path

    return write


def test_the_defaults_are_the_models_own():
    """`defaults.yaml` shows what holds anyway: neither can drift from the other."""
    assert load() == Settings()


def test_the_defaults_file_shows_every_setting():
    """Who reads it sees all there is to decide, but the hang limits."""
    text = resources.files("relight.config").joinpath("defaults.yaml").read_text(encoding="utf-8")
    shown = yaml.safe_load(text)
    assert set(shown) == set(Settings.model_fields)
    for section in ("temporal", "slurm", "logs", "ledger", "ingest", "telemetry"):
        assert set(shown[section]) == set(Settings.model_fields[section].annotation.model_fields)
    assert set(shown["metrics"]["prometheus"]) == set(PrometheusSettings.model_fields)
    assert set(shown["policy"]) == set(PolicySettings.model_fields) - {"hang"}


def test_the_defaults_touch_nothing():
    """Monitor mode, and no bare signal is trusted."""
    policy = load().policy
    assert (policy.mode, policy.trust_temporal_ui, policy.drains_per_hour) == (Mode.MONITOR, False, 1)


def test_a_site_file_changes_single_keys(site):
    """What it does not name keeps its default, within a section too."""
    found = load(site({"cluster": "east", "policy": {"mode": "approve"}, "slurm": {"timeout": "PT3S"}}))
    assert (found.cluster, found.policy.mode, found.slurm.timeout) == ("east", Mode.APPROVE, timedelta(seconds=3))
    assert found.policy.approval_expires == Policy().approval_expires
    assert found.temporal == Settings().temporal


def test_a_list_is_replaced_not_merged(site):
    """A site that names its own wrapper does not get ours in front of it."""
    assert load(site({"slurm": {"node_wrapper": ["ssh", "ctl"]}})).slurm.node_wrapper == ("ssh", "ctl")


@pytest.mark.parametrize("content", ["", "# nothing yet\n", "---\n"])
def test_an_empty_file_changes_nothing(site, content):
    """Nothing decided means the defaults."""
    assert load(site(content)) == Settings()


def test_a_variable_wins(site, monkeypatch):
    """Over the file, for a single key of a section, leaving its neighbours as the file says."""
    monkeypatch.setenv("RELIGHT_CLUSTER", "west")
    monkeypatch.setenv("RELIGHT_POLICY__MODE", "monitor")
    found = load(site({"cluster": "east", "policy": {"mode": "auto", "drains_per_hour": 5}}))
    assert (found.cluster, found.policy.mode, found.policy.drains_per_hour) == ("west", Mode.MONITOR, 5)


def test_a_variable_names_the_file(site):
    """RELIGHT_CONFIG is read where no path is given; a path given wins."""
    path = site({"cluster": "east"})
    assert load(environment={"RELIGHT_CONFIG": str(path)}).cluster == "east"
    assert load(environment={"RELIGHT_CONFIG": ""}).cluster == "main"
    assert load(path, environment={"RELIGHT_CONFIG": "/does/not/exist"}).cluster == "east"


def test_no_dotenv_file_is_read(tmp_path, monkeypatch):
    """A file that happens to lie in the working directory decides nothing."""
    (tmp_path / ".env").write_text("RELIGHT_POLICY__MODE=auto\n")
    monkeypatch.chdir(tmp_path)
    assert load().policy.mode is Mode.MONITOR


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            {"clutser": "x"},
            [
                "clutser: no such key",
                "ingest, kill_switch, ledger, logs, metrics",
            ],
        ),
        ({"policy": {"mod": "auto"}}, ["policy.mod: no such key", "approval_expires", "mode"]),
        ({"policy": {"hang": {"flor": "PT1S"}}}, ["policy.hang.flor: no such key", "floor"]),
        ({"slurm": {"way": "ssh"}}, ["slurm: way ssh needs ssh.host"]),
        ({"slurm": {"way": "telnet"}}, ["slurm.way", "'auto', 'pyslurm', 'commands' or 'ssh'", "telnet"]),
        ({"slurm": {"ssh": {"port": 0}}}, ["slurm.ssh.port", "greater than or equal to 1"]),
        ({"logs": {"over_ssh": True}}, [": logs.over_ssh needs slurm.ssh.host"]),
        ({"slurm": {"bim": "/x"}}, ["slurm.bim: no such key", "conf, cpu_time_as"]),
        ({"policy": {"mode": "full"}}, ["policy.mode", "'monitor', 'approve' or 'auto'", "found 'full'"]),
        ({"policy": {"drains_per_hour": "many"}}, ["policy.drains_per_hour", "integer", "found 'many'"]),
        ({"policy": {"drains_per_hour": -1}}, ["policy.drains_per_hour", "greater than or equal to 0", "found -1"]),
        ({"policy": {"approval_expires": "soon"}}, ["policy.approval_expires", "found 'soon'"]),
        ({"policy": None}, ["policy", "found None"]),
        ({"cluster": "a b"}, ["cluster", "found 'a b'"]),
        ({"cluster": "../up"}, ["cluster", "found '../up'"]),
        ({"logs": {"kernel": "/var/log/kern.log"}}, ["logs.kernel", "{node}", "found '/var/log/kern.log'"]),
        ("- a\n- b\n", ["must hold keys and values", "found list"]),
        ("just text\n", ["must hold keys and values", "found str"]),
        ("policy: [unclosed\n", ["is not YAML"]),
        ("7: x\n", ["7: a key must be text, found int"]),
        ("policy:\n  on: x\n", ["True: a key must be text, found bool"]),
    ],
)
def test_errors_say_what_to_change(site, content, said):
    """The file, the key, what was found and what is accepted."""
    path = site(content)
    with pytest.raises(ConfigError) as error:
        load(path)
    for words in (str(path), *said):
        assert words in str(error.value)


def test_all_errors_are_said_at_once(site):
    """One line each, so that a file is put right in one go."""
    with pytest.raises(ConfigError) as error:
        load(site({"clutser": "x", "policy": {"mode": "full"}}))
    assert len(str(error.value).splitlines()) == 2


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda _: None, "cannot be read: No such file or directory"),
        (lambda path: path.mkdir(), "cannot be read: Is a directory"),
        (lambda path: path.write_bytes(b"cluster: \xff\xfe\n"), "is not UTF-8 text"),
    ],
    ids=["missing", "folder", "bytes"],
)
def test_a_file_that_cannot_be_read_is_said(tmp_path, make, said):
    """With its name and why."""
    path = tmp_path / "relight.yaml"
    make(path)
    with pytest.raises(ConfigError) as error:
        load(path)
    assert str(error.value) == f"{path}: {said}"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RELIGHT_POLICY__MODE", "full"),
        ("RELIGHT_TEMPORAL__ADDRES", "x:1"),
        ("RELIGHT_POLICY", "auto"),
        ("RELIGHT_SLURM__RUN_AS", "sudo"),
    ],
)
def test_a_bad_variable_is_a_config_error(monkeypatch, name, value):
    """Whatever a variable holds, a person gets a sentence that names the section, not a trace."""
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=name.removeprefix("RELIGHT_").split("__")[0].lower()):
        load()


def test_unknown_variables_are_found():
    """Misspelt names are found; known ones, the file's, the lab's and other people's are not."""
    environment = {
        "RELIGHT_CLUSTER": "x",
        "RELIGHT_POLICY__MODE": "auto",
        "RELIGHT_CONFIG": "/x",
        "RELIGHT_LAB_ID": "1",
        "PATH": "/bin",
        "RELIGHT_CLUSTR": "x",
        "RELIGHT_CLUSTER__NAME": "x",
        "RELIGHT_POLCY__MODE": "auto",
    }
    assert unknown_variables(environment) == ("RELIGHT_CLUSTER__NAME", "RELIGHT_CLUSTR", "RELIGHT_POLCY__MODE")


def test_places_follow_from_the_data_folder(monkeypatch, tmp_path):
    """Ledger and keys lie in the data folder unless the site says otherwise; `~` is the user's home."""
    monkeypatch.setenv("HOME", str(tmp_path))
    found = Settings()
    assert found.folder == tmp_path / ".relight"
    assert found.ledger_url == f"sqlite:///{tmp_path}/.relight/ledger.sqlite"
    assert found.ledger_key == tmp_path / ".relight" / "ledger.key"
    assert found.approval_key == tmp_path / ".relight" / "approval.key"
    own = Settings(ledger={"url": "postgresql://db/relight", "key_file": "~/chain.key"})
    assert (own.ledger_url, own.ledger_key) == ("postgresql://db/relight", tmp_path / "chain.key")


def test_the_task_queue_is_the_clusters():
    """Controllers of two clusters do not take each other's work."""
    assert Settings(cluster="east").task_queue == "relight-east"


@pytest.mark.parametrize(
    ("temporal", "address"),
    [
        ({}, "http://127.0.0.1:8233"),
        ({"address": "temporal.example:7233"}, "http://temporal.example:8233"),
        ({"address": "temporal.example"}, ""),
        ({"ui": "https://ui.example/"}, "https://ui.example"),
    ],
)
def test_the_web_ui_is_guessed_for_a_local_server(temporal, address):
    """As `temporal server start-dev` serves it; where nothing can be guessed there is no link."""
    assert Settings(temporal=temporal).web_ui == address


def test_settings_do_not_change():
    """They are read once."""
    with pytest.raises(ValueError, match="frozen"):
        load().cluster = "other"


def test_the_data_folder_may_be_a_path(site, tmp_path):
    """An absolute folder is taken as it is."""
    assert load(site({"data": str(tmp_path)})).folder == Path(tmp_path)


@pytest.mark.parametrize("listen", ["127.0.0.1:8642", "[::1]:8642", "localhost:0", ""])
def test_ingest_may_listen_on_loopback_in_the_clear(site, listen):
    """Nobody overhears a token there."""
    assert load(site({"ingest": {"listen": listen}})).ingest.listen == listen


def test_ingest_elsewhere_needs_tls_or_a_word(site):
    """Who overhears a token can speak for its node."""
    with pytest.raises(ConfigError, match=r"ingest: listen on 0\.0\.0\.0:8642 without TLS"):
        load(site({"ingest": {"listen": "0.0.0.0:8642"}}))
    for word in ({"insecure": True}, {"tls_cert": "c.pem", "tls_key": "k.pem"}):
        assert load(site({"ingest": {"listen": "[::]:8642", **word}})).ingest.address == ("::", 8642)


@pytest.mark.parametrize("listen", ["8642", "127.0.0.1", "127.0.0.1:", ":8642", "127.0.0.1:x", "127.0.0.1:65536"])
def test_ingest_needs_host_and_port(site, listen):
    """What was found is said, and what is accepted."""
    with pytest.raises(ConfigError, match="host:port, for example"):
        load(site({"ingest": {"listen": listen}}))


@pytest.mark.parametrize("page", ["127.0.0.1:9464", "0.0.0.0:9464", "[::]:9464", ""])
def test_metrics_are_shown_where_the_settings_say(site, page):
    """Nowhere, where they say nothing."""
    assert load(site({"telemetry": {"prometheus": page}})).telemetry.prometheus == page


@pytest.mark.parametrize("page", ["9464", "localhost:9464", ":9464", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:65536"])
def test_metrics_need_an_ip_address_and_a_port(site, page):
    """Names are not looked up by the SDK's exporter; a port that nobody knows is scraped by nobody."""
    with pytest.raises(ConfigError, match=r"telemetry\.prometheus: .*an IP address and a port, for example"):
        load(site({"telemetry": {"prometheus": page}}))


def test_a_certificate_needs_its_key(site):
    """And the other way round."""
    with pytest.raises(ConfigError, match="belong together"):
        load(site({"ingest": {"tls_cert": "c.pem"}}))


def test_the_agents_key_stands_with_the_data(site):
    """Where nothing else is said."""
    assert load(site({"data": "/srv/relight"})).ingest_key == Path("/srv/relight/ingest.key")
    assert load(site({"ingest": {"key_file": "/etc/relight/agents.key"}})).ingest_key == Path("/etc/relight/agents.key")


@pytest.mark.parametrize(
    "value",
    [
        {"url": ""},
        {"url": "http://127.0.0.1:9090"},
        {"url": "https://mimir.example/prometheus/", "tenant": "east", "token_file": "~/token"},
        {"node_label": "instance", "selector": 'cluster="east",job=~"dcgm.*"', "period": "PT15S"},
    ],
)
def test_gpu_metrics_are_read_where_the_settings_say(site, value):
    """Nowhere, where they say nothing."""
    found = load(site({"metrics": {"prometheus": value}})).metrics.prometheus
    assert found == PrometheusSettings(**value)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"url": "prometheus:9090"}, "must be like https://"),
        ({"url": "http://"}, "must be like https://"),
        ({"url": "http://me:secret@prometheus:9090"}, "without user, password or query"),
        ({"url": "http://prometheus:9090/?query=up"}, "without user, password or query"),
        ({"node_label": "host-name"}, "metrics.prometheus.node_label"),
        ({"selector": '{cluster="east"}'}, "without braces"),
        ({"selector": "cluster=east"}, "label matchers such as"),
        ({"selector": 'a="b"} or up{c="d"'}, "label matchers such as"),
        ({"selector": 'a="b\\"'}, "label matchers such as"),
        ({"period": "PT0.1S"}, "metrics.prometheus.period"),
        ({"uri": "x"}, "metrics.prometheus.uri: no such key; accepted here: ca, node_label, period"),
    ],
)
def test_settings_of_gpu_metrics_that_cannot_be_are_said(site, value, says):
    """With the key, and what is accepted."""
    with pytest.raises(ConfigError, match=re.escape(says)):
        load(site({"metrics": {"prometheus": value}}))
