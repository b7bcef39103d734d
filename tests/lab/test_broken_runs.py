"""Broken runs without a cluster: the table of kinds, the scripts, what is kept of the kernel's log, what is refused."""

import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from relight.lab import broken_runs_script
from relight.lab.bench_attribution_labels import read_places
from relight.lab.broken_runs import Launch, kinds
from relight.lab.broken_runs_memory import kills
from relight.lab.cli import lab

NODES = ("n1", "n2")


def test_there_are_enough_kinds_and_ways_to_launch() -> None:
    """At least twelve kinds, of all ways to launch."""
    assert len(kinds()) >= 12
    assert {kind.launch for kind in kinds().values()} == {*Launch}


@pytest.mark.parametrize("name", kinds())
def test_a_label_can_be_checked(name: str) -> None:
    """The benchmark can score whom it names, and a rank stands on its node."""
    kind = kinds()[name]
    places = read_places(kind.who(NODES))
    assert places is not None
    assert (set(places.ranks), bool(places.nodes)) == (
        set() if kind.rank is None else {kind.rank},
        kind.guilty_node is not None,
    )


@pytest.mark.parametrize("name", kinds())
def test_the_shell_of_a_kind_is_sound(tmp_path: Path, name: str) -> None:
    """bash takes the batch script and the task's; srun gets as many tasks as the launch wants."""
    kind = kinds()[name]
    script = broken_runs_script.render(kind, name, tmp_path, 20_000, tmp_path)
    for text in (script, broken_runs_script.task(kind)):
        subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    wanted = 2 if kind.launch in broken_runs_script.BY_NODE else 8
    assert f" --ntasks={wanted} " in script


MESSAGES = """\
2026-11-30T20:57:17,000000+00:00 other invoked oom-killer: order=0
2026-11-30T20:57:17,000001+00:00 oom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg=/theirs,task=other,pid=7
2026-11-30T20:57:17,000002+00:00 Memory cgroup out of memory: Killed process 7 (other)
2026-11-30T20:57:18,388640+00:00 python invoked oom-killer: order=0
2026-11-30T20:57:18,389052+00:00 oom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg=/ours,task=python,pid=8
2026-11-30T20:57:18,389107+00:00 Memory cgroup out of memory: Killed process 8 (python)
2026-11-30T20:57:19,000000+00:00 eth0: link up
"""


def test_of_the_kernels_log_only_our_own_kills_are_kept() -> None:
    """Others' kills on this machine are nobody's business."""
    kept = kills(MESSAGES, "ours", "n2")
    assert [line.split(" ", 3)[3] for line in kept] == [
        "python invoked oom-killer: order=0",
        "oom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg=/ours,task=python,pid=8",
        "Memory cgroup out of memory: Killed process 8 (python)",
    ]
    assert kept[0].startswith("2026-11-30T20:57:18.388640+00:00 n2 kernel: ")
    assert kills(MESSAGES, "nobodys", "n2") == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["fire"], "no kind 'fire'; there are kill, stop"),
        ([], "name one or more kinds, or --all; there are kill"),
        (["kill", "--all"], "name one or more kinds, or --all"),
    ],
)
def test_what_is_no_kind_is_told(tmp_path: Path, arguments: list[str], told: str) -> None:
    """In one line, before anything is started."""
    done = CliRunner().invoke(lab, ["break", *arguments, str(tmp_path / "new")])
    assert done.exit_code == 2
    assert told in done.output
    assert not (tmp_path / "new").exists()


def test_help_lists_the_kinds() -> None:
    """With what is done."""
    shown = CliRunner().invoke(lab, ["break", "--help"]).output
    assert all(name in shown for name in kinds())
