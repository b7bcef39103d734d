"""The catalogue: valid, complete, and clear about what is wrong with a site's own file."""

import io
from collections import Counter
from pathlib import Path

import pytest
import yaml

from relight.attribution.blocks import blocks
from relight.attribution.catalogue import CatalogueError, Role, load
from relight.attribution.scanner import Scanner

FILES = sorted((Path(__file__).parent / "examples").glob("*.yaml"))
EXAMPLES = {name: lines for file in FILES for name, lines in yaml.safe_load(file.read_text()).items()}
ENTRY = """
signatures:
  - id: SITE_FAN
    role: root
    category: NODE
    entity: fan
    patterns: ['fan (?P<gpu>\\d+) stopped']
    action: RESTART_EXCLUDING_NODE
    action_if_it_repeats: RESTART_EXCLUDING_NODE
    weight: 0.9
    tell: hardware ops
    summary: "A fan stopped ({where})."
    source: our own runbook
"""


@pytest.fixture(scope="module")
def scanners():
    """One scanner for each engine."""
    return {fast: Scanner(load(), fast=fast) for fast in (True, False)}


def recognised(scanner, line):
    """The names of the signatures that recognise the line."""
    (block,) = blocks(io.BytesIO(line.encode() + b"\n"))
    return {match.signature for match in scanner.matches(block, Counter())}


def test_every_signature_has_examples():
    """No signature goes without a line that it recognises and one that it leaves alone."""
    assert set(EXAMPLES) == set(load().signatures)


@pytest.mark.parametrize("fast", [True, False], ids=["hyperscan", "re"])
@pytest.mark.parametrize("identity", sorted(EXAMPLES))
def test_signature_knows_its_own(scanners, identity, fast):
    """A signature recognises its example and not the one beside it, with either engine."""
    yes, no = EXAMPLES[identity]
    assert identity in recognised(scanners[fast], yes)
    assert identity not in recognised(scanners[fast], no)


def test_cascades_and_contexts_never_drain():
    """Only a root may be a reason to isolate a node for everybody."""
    for signature in load().signatures.values():
        assert signature.role is Role.ROOT or signature.isolates_node != "platform"


def test_application_xids_isolate_no_node():
    """Xid 13, 31, 43 are the program's, 45 is an echo: none keeps a node away from anyone."""
    for identity in ("XID_13_31_43", "XID_45"):
        assert load()[identity].isolates_node == "never"


def test_site_adds_and_replaces(tmp_path):
    """A site's file adds signatures and replaces shipped ones by id."""
    file = tmp_path / "site.yaml"
    file.write_text(ENTRY + ENTRY.replace("SITE_FAN", "CUDA_OOM").replace("\nsignatures:", ""))
    catalogue = load([file])
    assert "SITE_FAN" in catalogue
    assert catalogue["CUDA_OOM"].source == "our own runbook"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("role: root", "role: rott", ["SITE_FAN", "role", "'rott'", "'root', 'cascade'"]),
        ("weight: 0.9", "weight: 9", ["weight", "less than or equal to 1", "found 9"]),
        ("stopped'", "stopped('", ["patterns", "not a regular expression"]),
        ("stopped'", "(?=x)stopped'", ["patterns", "look-around"]),
        ("{where}", "{were}", ["summary", "{were}", "accepted are", "where"]),
        ("tell: hardware ops", "tel: hardware ops", ["tel", "SITE_FAN"]),
        ("signatures:", "signature:", ["no list under 'signatures'"]),
        ("weight: 0.9", "explains: [NOPE]\n    weight: 0.9", ["explains", "'NOPE'"]),
        ("id: SITE_FAN", "id: 'SITE_FAN", ["not YAML"]),
    ],
)
def test_error_names_file_entry_field_and_choices(tmp_path, old, new, said):
    """A wrong catalogue is refused with the file, the entry, the field, what was found and what is accepted."""
    file = tmp_path / "site.yaml"
    file.write_text(ENTRY.replace(old, new))
    with pytest.raises(CatalogueError) as error:
        load([file])
    for part in said:
        assert part in str(error.value)


def test_unreadable_catalogue(tmp_path):
    """A catalogue that is not there is an error of the catalogue, not a traceback."""
    with pytest.raises(CatalogueError, match=r"none\.yaml: cannot be read"):
        load([tmp_path / "none.yaml"])
