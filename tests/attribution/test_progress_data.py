"""The formats: valid, a site's own over them, and clear about what is wrong with a file."""

import pytest

from relight.attribution.hyperscan_automaton import hyperscan
from relight.attribution.progress import reader
from relight.attribution.progress_formats import ProgressDataError, load

SITE = """
steps:
  - name: ours
    needs: [Tick, tock]
    pattern: 'tick <step> of <total>'
    fields:
      loss: 'L=(<number>)'
phases:
  - name: ours
    needs: siesta
    phase: checkpoint
    begins: 'siesta begins'
"""


def written(tmp_path, text, name="site.yaml"):
    """A file with this text."""
    file = tmp_path / name
    file.write_text(text)
    return file


def test_site_adds(tmp_path):
    """A site's file adds steps and phases, and leaves the shipped ones as they are."""
    own = reader([written(tmp_path, SITE)])
    (mark,) = own.read("tick 5 of 10 L=0.5")
    assert (mark.step, mark.total, mark.loss) == (5, 10, 0.5)
    assert own.read("siesta begins")[0].phase == "checkpoint"
    assert own.read("step 5/10 | loss 0.5") == reader().read("step 5/10 | loss 0.5")


def test_site_replaces(tmp_path):
    """An entry with a known name takes its place; the last file counts."""
    first = written(tmp_path, SITE)
    second = written(tmp_path, SITE.replace("of <total>", "von <total>").split("phases:")[0], "second.yaml")
    own = reader([first, second])
    assert own.read("tick 5 of 10 L=0.5") == ()
    assert own.read("tick 5 von 10 L=0.5")[0].step == 5
    assert len(load([first, second]).steps) == len(load().steps) + 1


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("needs: [Tick, tock]\n    pattern", "pattern", "steps: entry ours: needs: Field required"),
        ("needs: siesta", "needs: s", "phases: entry ours: needs.0: "),
        ("phase: checkpoint", "phase: nap", "phases: entry ours: phase: Input should be 'startup', 'data'"),
        ("<step>", "5", "has no <step>"),
        ("<step>", "(?=<step>)", "look-around"),
        ("<step>", "<step>(", "is not a regular expression"),
        ("'tick <step> of <total>'", "'(?:<step>)?'", "matches the empty line"),
        ("of <total>", "of (?P<whole>\\d+)", "has the group 'whole'; accepted are epoch, epochs, grad_norm"),
        ("loss: 'L", "lose: 'L", "fields: Value error, has 'lose'; accepted are epoch, grad_norm, loss"),
        ("(<number>)", "<number>", "has no group; put the number into parentheses"),
        ("    needs: siesta", "    needs: siesta\n    never: x", "accepted are name, needs, phase, begins, ends"),
        ("steps:", "stairs:", "found 'stairs'; accepted are bars, phases, shared, steps, values"),
        ("steps:\n  - name: ours", "steps:\n  name: ours", "not YAML"),
        ("phases:\n", "values: 5\nphases:\n", "values: found 5; accepted is a list of entries"),
        ("phases:\n", "bars: {needs: x}\nphases:\n", "bars: needs"),
        ("phases:\n", "phases:\n  - 7\n", "phases: entry number 1"),
        ("phases:\n", "phases:\n  - {name: ours, needs: xy, phase: data}\n", "phases: entry ours: name: found twice"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, old, new, said):
    """A bad file is refused with the file, the entry, the field and what is accepted."""
    assert old in SITE
    file = written(tmp_path, SITE.replace(old, new))
    with pytest.raises(ProgressDataError, match=r".") as error:
        load([file])
    assert str(file) in str(error.value)
    assert said in str(error.value)


@pytest.mark.parametrize("text", ["", "- a\n", "\x00"])
def test_no_mapping(tmp_path, text):
    """A file that is no mapping is refused."""
    with pytest.raises(ProgressDataError, match=r"site\.yaml"):
        load([written(tmp_path, text)])


def test_unreadable(tmp_path):
    """A file that is not there is told by name."""
    with pytest.raises(ProgressDataError, match=r"missing\.yaml: cannot be read"):
        load([tmp_path / "missing.yaml"])


@pytest.mark.skipif(hyperscan is None, reason="the extra `scan` is not installed")
def test_patterns_are_of_both_dialects():
    """Each shipped pattern is one for hyperscan too."""
    patterns = [form.pattern for form in load().steps]
    database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    database.compile(expressions=[pattern.encode() for pattern in patterns], elements=len(patterns))
