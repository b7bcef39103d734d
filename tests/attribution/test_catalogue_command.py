"""`relight catalogue` as people and programs use it."""

import json

import pytest
from click.testing import CliRunner

from relight.attribution.catalogue import Retry, load
from relight.attribution.catalogue_command import catalogue

SITE = """
signatures:
  - id: SITE_FAN
    role: root
    category: NODE
    entity: fan
    patterns: ['fan (?P<gpu>\\d+) stopped']
    action: RESTART_EXCLUDING_NODE
    action_if_it_repeats: RESTART_EXCLUDING_NODE
    weight: 0.9
    isolates_node: job_exclusion
    tell: hardware ops
    summary: "A fan stopped ({where})."
    source: our own runbook
    examples:
      match: ['bmc: fan 3 stopped']
      no_match: ['bmc: fan 3 runs']
"""
NVLINK = "NVRM: Xid (PCI:0009:01:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 01 (0x021425c6 0x00000000)"


@pytest.fixture
def run(monkeypatch):
    """Runs the command in a terminal of 70 columns."""
    monkeypatch.setenv("COLUMNS", "70")
    return lambda *arguments: CliRunner().invoke(catalogue, [str(one) for one in arguments])


@pytest.fixture
def site(tmp_path):
    """Writes a site's file."""

    def write(text=SITE):
        file = tmp_path / "site.yaml"
        file.write_text(text)
        return file

    return write


def test_list_fits_the_terminal(run):
    """Group by group, no line wider than the terminal."""
    result = run("list", "--group", "gpu", "--role", "root", "--category", "gpu")
    assert result.exit_code == 0
    assert "XID_79" in result.output
    assert "XID_45" not in result.output
    assert max(map(len, result.output.splitlines())) <= 70


def test_list_for_programs(run, site):
    """`--json` prints all fields, also those that follow from others; a site's own entries are among them."""
    entries = {one["id"]: one for one in json.loads(run("list", "--catalogue", site(), "--json").output)}
    assert set(entries) == {*load().signatures, "SITE_FAN"}
    fan = entries["SITE_FAN"]
    assert (fan["group"], fan["retry"], fan["witness"]) == ("site", "elsewhere", ["one_node"])
    assert entries["XID_45"]["retry"] == "not_applicable"


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("XID_79", ["root", "fell off the bus", "without the node", "drain", "NVIDIA Xid catalogue"]),
        ("xid_79", ["fell off the bus"]),
        ("xid:94", ["ROBUST_CHANNEL_CONTAINED_ERROR", "RESTART_APP", "gcm", "XID_94_95"]),
        ("Xid:149", ["XID_144_150", "XID_144_150_NONFATAL"]),
        ("sxid:12028", ["non-fatal", "Xid 45", "SXID_NONFATAL"]),
        (NVLINK, ["link 1", "Link Fatal", "RESET_GPU", "INVESTIGATE_PEER_DEVICE", "XID_144_150"]),
        ("IB_MODIFY_QP", ["unless", "after progress", "network ops"]),
    ],
)
def test_show(run, name, parts):
    """An id in either case, a number of NVIDIA's, a line of a log: for people, and one JSON object."""
    result = run("show", name)
    assert result.exit_code == 0
    for part in parts:
        assert part in result.output
    assert isinstance(json.loads(run("show", name, "--json").output), dict)


@pytest.mark.parametrize(
    ("name", "code", "parts"),
    [
        ("XID_7", 4, ["no entry 'XID_7'", "XID_79"]),
        ("WATCHDOG", 4, ["NCCL_WATCHDOG_TIMEOUT"]),
        ("xid:999", 4, ["no Xid 999", "172"]),
        ("sxid:1", 4, ["no SXid 1", "10001"]),
        ("xid:foo", 2, ["'foo' is no number"]),
        ("xid:٧٩", 2, ["is no number"]),
        ("all is well here", 4, ["no entry recognises this line"]),
    ],
)
def test_unknown_names(run, name, code, parts):
    """One line that says what is nearest; no traceback."""
    result = run("show", name)
    assert result.exit_code == code
    for part in parts:
        assert part in result.output


def test_unknown_group(run):
    """The groups there are, in one line."""
    result = run("list", "--group", "gpus")
    assert result.exit_code == 4
    assert "no group 'gpus'; groups are gpu, cuda" in result.output


def test_a_good_file(run, site):
    """Counted, with its examples run."""
    result = run("test", site())
    assert result.exit_code == 0
    assert "1 entry is valid, 2 examples hold" in result.output


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("role: root", "role: rott", [":4: entry SITE_FAN: role", "'root', 'cascade'", "found 'rott'"]),
        ("tell: hardware ops", "tel: hardware ops", ["tel: is no field (do you mean tell?)", "tell: Field required"]),
        ("fan 3 stopped", "fan three stopped", ["examples.match: is not recognised"]),
        ("fan 3 runs", "fan 4 stopped again", ["examples.no_match: is recognised all the same"]),
        ("patterns: ['fan", "patterns: ['step', 'fan", ["patterns: too wide", "recognises a line of healthy logs"]),
        ("role: root", "role: cascade\n    isolates_node: platform", ["drains no node"]),
        ("weight: 0.9", "weight: [1]", ["weight", "found [1]"]),
        ("weight: 0.9", "weight: 0.9\n    explains: [NOPE]", ["explains: found 'NOPE'"]),
        ("signatures:", "marks: {}\nsignatures:", ["marks: is no part of a catalogue"]),
        ("  - id: SITE_FAN", "  - just words\n  - id: SITE_FAN", ["entry number 1", "dictionary"]),
    ],
)
def test_all_that_is_wrong(run, site, old, new, parts):
    """File, line, entry, field, what was found, what is accepted; all problems at once; exit code 1."""
    result = run("test", site(SITE.replace("    isolates_node: job_exclusion\n", "").replace(old, new)))
    assert result.exit_code == 1
    for part in ("site.yaml", *parts):
        assert part in result.output
    assert "Traceback" not in result.output


def test_notes(run, site):
    """What is not wrong but worth knowing: a shipped entry is replaced, an entry has no examples."""
    result = run("test", site(SITE.split("    examples:", maxsplit=1)[0].replace("SITE_FAN", "CUDA_OOM")))
    assert result.exit_code == 0
    assert "CUDA_OOM replaces an entry of the group cuda" in result.output
    assert "has no examples.match" in result.output


def test_files_that_cannot_be_read(run, tmp_path):
    """Not there: 4. Not text: 1."""
    assert run("test", tmp_path / "none.yaml").exit_code == 4
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    result = run("test", binary)
    assert result.exit_code == 1
    assert "cannot be read: it is not UTF-8 text" in result.output


def test_schema(run):
    """A JSON schema that names the fields, what each accepts, and what it says."""
    schema = json.loads(run("schema").output)
    assert schema["required"] == ["signatures"]
    fields = schema["$defs"]["Signature"]
    assert fields["additionalProperties"] is False
    assert {"retry", "witness", "tell", "source", "examples"} <= set(fields["properties"])
    assert "What a retry does" in fields["properties"]["retry"]["description"]
    assert schema["$defs"]["Retry"]["enum"] == [retry.value for retry in Retry]
