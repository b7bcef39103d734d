"""The root-owned program `relight-node`, and the client that calls it: what each allows, refuses and reports."""

import json
import shlex
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.clients import relight_node
from relight.clients.node_wrapper import NodeWrapper
from relight.clients.relight_node import (
    AMBIGUOUS,
    FAILED,
    NOT_FOUND,
    REFUSED,
    USAGE,
    Budget,
    Node,
    Request,
    Stop,
    Wrapper,
    parse_node,
    parse_request,
    read_settings,
    words_of_caller,
)
from relight.clients.slurm import (
    AmbiguousWriteError,
    NodeControl,
    NodeNotFoundError,
    NotPermittedError,
    RefusedError,
    SlurmUnavailableError,
)
from relight.domain.incidents import node_reason

RECORDED = Path(__file__).parent / "recorded"
MARK = "relight:recover/lab/7/20261130T092712Z:gpu_fault: Xid 79"
OTHER = "relight:recover/lab/8/20261130T101500Z:hang: silent"
both = pytest.mark.parametrize("version", ["22.05", "24.11"])


def node(states: str = "IDLE", reason: str = "", *, responding: bool = True) -> Node:
    """A node as slurmctld would tell it."""
    return Node(frozenset(states.split("+")), responding, reason)


class Slurmctld:
    """Keeps nodes as slurmctld does, for the program's own logic. The real one is in `tests/system`."""

    def __init__(self, **nodes: Node) -> None:
        self.nodes = nodes
        self.writes: list[tuple[str, ...]] = []
        self.fails: Stop | None = None

    def node(self, name: str) -> Node:
        if name not in self.nodes:
            raise Stop(NOT_FOUND, "no such node")
        return self.nodes[name]

    def update(self, name: str, *changes: str) -> None:
        self.writes.append((name, *changes))
        if self.fails:
            raise self.fails
        values = dict(change.split("=", 1) for change in changes)
        before = self.nodes[name]
        states = {
            "DRAIN": before.states | {"DRAIN"},
            "DOWN": (before.states - {"IDLE", "ALLOCATED"}) | {"DOWN"},
            "RESUME": frozenset({"IDLE"}),
            "FAIL": before.states | {"FAIL"},
        }[values["State"]]
        self.nodes[name] = Node(states, before.responding, values.get("Reason", ""))


Act = Callable[..., str]


@pytest.fixture
def budget(tmp_path: Path) -> Budget:
    """One drain and two downs an hour."""
    return Budget(tmp_path / "state.json", {"drain": 1, "down": 2})


def act(slurmctld: Slurmctld, budget: Budget, *words: str) -> str:
    """One call of the program."""
    return Wrapper(slurmctld, budget).act(parse_request(list(words)))  # type: ignore[arg-type]


def refused(status: int, slurmctld: Slurmctld, budget: Budget, *words: str) -> None:
    """One call that ends with that status and writes nothing."""
    before = list(slurmctld.writes)
    with pytest.raises(Stop) as stop:
        act(slurmctld, budget, *words)
    assert stop.value.status == status
    assert slurmctld.writes == before


def test_a_drain_is_done_once(budget: Budget) -> None:
    """The same incident's mark is success and counts no second time."""
    slurmctld = Slurmctld(n1=node())
    assert act(slurmctld, budget, "drain", "n1", MARK) == "drained"
    assert act(slurmctld, budget, "drain", "n1", MARK) == "drained already"
    assert slurmctld.writes == [("n1", "State=DRAIN", f"Reason={MARK}")]


def test_the_hourly_cap(budget: Budget, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second node within the hour is refused; an hour later it is not."""
    slurmctld = Slurmctld(n1=node(), n2=node())
    act(slurmctld, budget, "drain", "n1", MARK)
    refused(REFUSED, slurmctld, budget, "drain", "n2", MARK)
    later = time.time() + 3601
    monkeypatch.setattr(relight_node.time, "time", lambda: later)
    assert act(slurmctld, budget, "drain", "n2", MARK) == "drained"


def test_what_certainly_failed_does_not_count(budget: Budget) -> None:
    """An error of slurmctld gives the drain back; a lost answer does not."""
    slurmctld = Slurmctld(n1=node())
    slurmctld.fails = Stop(FAILED, "Invalid node state specified")
    for _ in range(2):
        with pytest.raises(Stop, match="Invalid node state"):
            act(slurmctld, budget, "drain", "n1", MARK)
    slurmctld.fails = Stop(AMBIGUOUS, "no answer")
    with pytest.raises(Stop, match="no answer"):
        act(slurmctld, budget, "drain", "n1", MARK)
    slurmctld.fails = None
    refused(REFUSED, slurmctld, budget, "drain", "n1", MARK)


@pytest.mark.parametrize(
    "foreign",
    [
        node("IDLE+DRAIN", "admin: hands off"),
        node("MIXED+DRAIN", "not relight:recover/x:y: z"),
        node("IDLE+DRAIN"),
        node("IDLE", "Low RealMemory"),
        node("DOWN", "admin: broken fan"),
    ],
)
@pytest.mark.parametrize("words", [("drain", "n1", MARK), ("down", "n1", MARK), ("undrain", "n1")])
def test_somebody_elses_decision_stands(budget: Budget, foreign: Node, words: tuple[str, ...]) -> None:
    """A drain or a reason that is not Relight's is left as it is, whatever is asked for."""
    refused(REFUSED, Slurmctld(n1=foreign), budget, *words)


def test_a_lost_node_may_be_drained(budget: Budget) -> None:
    """slurmctld's own "Not responding" is nobody's decision."""
    lost = node("DOWN", "Not responding", responding=False)
    assert act(Slurmctld(n1=lost), budget, "drain", "n1", MARK) == "drained"


def test_a_mark_with_slurms_remark_is_still_ours(budget: Budget) -> None:
    """slurmctld appends " : Not responding" to a drained node's reason (seen): it is the same incident's mark."""
    slurmctld = Slurmctld(n1=node("DOWN+DRAIN", f"{MARK} : Not responding", responding=False))
    assert act(slurmctld, budget, "drain", "n1", MARK) == "drained already"


def test_a_later_incident_replaces_our_mark(budget: Budget) -> None:
    """Our own mark of another incident is replaced, and the drain counts no second time."""
    slurmctld = Slurmctld(n1=node("IDLE+DRAIN", OTHER), n2=node())
    assert act(slurmctld, budget, "drain", "n1", MARK) == "drained"
    assert act(slurmctld, budget, "drain", "n2", MARK) == "drained"


def test_undrain(budget: Budget) -> None:
    """A node of ours returns; one that is in service already is fine."""
    slurmctld = Slurmctld(n1=node("IDLE+DRAIN", MARK), n2=node(), n3=node("DOWN+DRAIN", MARK, responding=False))
    assert act(slurmctld, budget, "undrain", "n1") == "returned to service"
    assert act(slurmctld, budget, "undrain", "n2") == "not drained"
    act(slurmctld, budget, "undrain", "n3")
    assert slurmctld.writes == [("n1", "State=RESUME"), ("n3", "State=RESUME")]


def test_down_is_for_nodes_that_cannot_end_their_jobs(budget: Budget) -> None:
    """Completing, not responding or drained by us; a healthy node is refused."""
    slurmctld = Slurmctld(
        n1=node("IDLE+COMPLETING"),
        n2=node("IDLE", responding=False),
        n3=node("IDLE+DRAIN", MARK),
        n4=node("ALLOCATED"),
        n5=node("IDLE+COMPLETING"),
    )
    for name in ("n1", "n2", "n3"):
        assert act(slurmctld, budget, "down", name, MARK) == "down"
    assert act(slurmctld, budget, "down", "n1", MARK) == "down already"
    refused(REFUSED, slurmctld, budget, "down", "n4", MARK)
    refused(REFUSED, slurmctld, budget, "down", "n5", MARK)  # the third that bore no mark of ours


@pytest.fixture
def platform(tmp_path: Path) -> Budget:
    """A site whose root lets one node an hour be handed to the platform's repair."""
    return Budget(tmp_path / "platform.json", {"drain": 1, "down": 1, "action": 1})


def test_the_platform_is_asked_for_a_node_of_ours(platform: Budget) -> None:
    """Its own words take the place of our mark, once; from then on the node is not ours any more."""
    slurmctld = Slurmctld(n1=node("IDLE+DRAIN", MARK), n2=node("IDLE+DRAIN", OTHER))
    assert act(slurmctld, platform, "action", "n1", "Reboot") == "its platform is asked: Action:Reboot"
    assert act(slurmctld, platform, "action", "n1", "Reboot") == "asked for already"
    assert slurmctld.writes == [("n1", "State=FAIL", "Reason=Action:Reboot")]
    refused(REFUSED, slurmctld, platform, "action", "n2", "Replace")
    for words in (("undrain", "n1"), ("action", "n1", "Replace")):
        refused(REFUSED, slurmctld, platform, *words)


@pytest.mark.parametrize(
    "other",
    [
        node(),
        node("IDLE+DRAIN", "bad fan"),
        node("IDLE", MARK),
        node("MIXED+DRAIN", MARK),
        node("IDLE+DRAIN+COMPLETING", MARK),
    ],
)
def test_the_platform_is_asked_for_nothing_else(platform: Budget, other: Node) -> None:
    """Not for a healthy node, another's, one of ours that is back in service, or one with something on it."""
    refused(REFUSED, Slurmctld(n1=other), platform, "action", "n1", "Replace")


@pytest.mark.parametrize("word", ["reboot", "Action:Reboot", "Destroy", "", "Reboot now"])
def test_only_two_words_ask_the_platform(word: str) -> None:
    """Nothing else of what a caller says becomes a reason."""
    with pytest.raises(Stop) as stop:
        parse_request(["action", "n1", word])
    assert stop.value.status == USAGE


def test_no_site_asks_its_platform_unless_root_says_so(tmp_path: Path) -> None:
    """The cap is 0 by default."""
    settings = read_settings(tmp_path / "none.conf")
    assert settings["actions_per_hour"] == "0"
    budget = Budget(tmp_path / "s.json", {"action": int(settings["actions_per_hour"])})
    refused(REFUSED, Slurmctld(n1=node("IDLE+DRAIN", MARK)), budget, "action", "n1", "Reboot")


def test_an_unknown_node(budget: Budget) -> None:
    """It ends with the status that says so."""
    refused(NOT_FOUND, Slurmctld(), budget, "drain", "n9", MARK)


def test_a_lost_memory_is_not_an_empty_one(budget: Budget) -> None:
    """With an unreadable state file nothing is drained."""
    budget.path.write_text("{")
    refused(FAILED, Slurmctld(n1=node()), budget, "drain", "n1", MARK)


def test_two_calls_at_once_share_the_budget(tmp_path: Path) -> None:
    """Of five processes at once exactly one gets the hour's only drain."""
    code = (
        "import sys, time; from pathlib import Path; import runpy;"
        f"m = runpy.run_path({relight_node.__file__!r});"
        f"b = m['Budget'](Path({str(tmp_path / 'state.json')!r}), {{'drain': 1}})\n"
        "with b.locked():\n"
        "    try: b.take('drain', time.time())\n"
        "    except m['Stop']: sys.exit(3)\n"
    )
    calls = [subprocess.Popen([sys.executable, "-I", "-c", code]) for _ in range(5)]
    assert sorted(call.wait() for call in calls) == [0, 3, 3, 3, 3]
    assert len(json.loads((tmp_path / "state.json").read_text())["drain"]) == 1


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["drain"],
        ["drain", "n1"],
        ["drain", "n1", "because"],
        ["drain", "n1", "relight:x: no class"],
        ["drain", "n1", MARK + "\n"],
        ["drain", "n1", MARK + "\x1b[31m"],
        ["drain", "n1", MARK + "x" * 200],
        ["drain", "n1", MARK, "more"],
        ["drain", "-n1", MARK],
        ["drain", "n[1-2]", MARK],
        ["drain", "n1,n2", MARK],
        ["drain", "n1 State=DOWN", MARK],
        ["drain", "", MARK],
        ["undrain", "n1", MARK],
        ["undrain", "ALL "],
        ["reboot", "n1"],
        ["--help", "n1"],
    ],
)
def test_what_is_no_request(words: list[str]) -> None:
    """Everything but one plain name and a well-formed mark is a usage error."""
    with pytest.raises(Stop) as stop:
        parse_request(words)
    assert stop.value.status == USAGE


@given(st.lists(st.text(max_size=30), max_size=4))
def test_any_words_are_a_request_or_none(words: list[str]) -> None:
    """Hostile words never get further."""
    try:
        request = parse_request(words)
    except Stop:
        return
    assert not set(request.node) & set(" ,=[]\"'\n\t\0-") - {"-"}


@given(st.text(max_size=300).filter(lambda words: any(sign.isprintable() and sign != " " for sign in words)))
def test_relights_own_marks_are_accepted(words: str) -> None:
    """Whatever printable text an incident carries, `node_reason` makes a mark that the program takes."""
    printable = "".join(sign for sign in words if sign.isprintable())
    mark = node_reason("recover/lab/7/20261130T092712Z", "gpu_fault", printable)
    if mark.rstrip().endswith("gpu_fault:"):
        return
    assert parse_request(["drain", "n1", mark]) == Request("drain", "n1", mark)


def test_words_over_ssh() -> None:
    """As a forced command it splits the client's line, and only when it has no words of its own."""
    line = f"/usr/local/sbin/relight-node drain n1 {shlex.quote(MARK)}"
    assert words_of_caller([], {"SSH_ORIGINAL_COMMAND": line}) == ["drain", "n1", MARK]
    assert words_of_caller([], {"SSH_ORIGINAL_COMMAND": "undrain n1; reboot"}) == ["undrain", "n1;", "reboot"]
    assert words_of_caller(["undrain", "n2"], {"SSH_ORIGINAL_COMMAND": "undrain n1"}) == ["undrain", "n2"]
    with pytest.raises(Stop):
        words_of_caller([], {"SSH_ORIGINAL_COMMAND": "drain 'n1"})


def test_settings(tmp_path: Path) -> None:
    """Defaults without a file; a file that others may write, or with a strange key, is an error."""
    file = tmp_path / "relight-node.conf"
    assert read_settings(file)["drains_per_hour"] == "1"
    assert read_settings(file)["state"] == "/var/lib/relight-node/relight-node.json"
    file.write_text("# ours\n\nslurm_conf = /etc/slurm/b.conf\ndrains_per_hour=3\n")
    file.chmod(0o644)
    assert (read_settings(file)["slurm_conf"], read_settings(file)["drains_per_hour"]) == ("/etc/slurm/b.conf", "3")
    file.chmod(0o666)
    with pytest.raises(Stop, match="root's alone"):
        read_settings(file)
    file.chmod(0o600)
    for text in ("colour = red", "slurm_conf", "scontrol = scontrol"):
        file.write_text(text)
        with pytest.raises(Stop):
            read_settings(file)


@both
def test_what_slurm_says_of_nodes(version: str) -> None:
    """Ours, an administrator's that quotes a mark, and a lost one, as 22.05 and 24.11 print them."""
    lines = (RECORDED / version / "scontrol-nodes.txt").read_text().splitlines()
    ours, admins, lost = (parse_node(f"n{number}", lines[number - 1]) for number in (2, 3, 4))
    assert ours.ours
    assert ours.reason == MARK + ' | "q" [x]'
    assert ours.drained
    assert admins.foreign
    assert admins.reason.startswith("admin: hands off")
    assert (lost.responding, lost.foreign, lost.reason) == (False, False, "Not responding")
    with pytest.raises(Stop):
        parse_node("n1", lines[1])


# The client


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], NodeWrapper]:
    """A client of a shell script in place of sudo and the program."""

    def write(body: str) -> NodeWrapper:
        script = tmp_path / "sudo"
        script.write_text(f"#!/bin/sh\n{body}\n")
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        contract: NodeControl = NodeWrapper((str(script),))
        assert isinstance(contract, NodeWrapper)
        return contract

    return write


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("echo failed >&2; exit 1", SlurmUnavailableError),
        ("exit 2", RefusedError),
        ("echo 'set aside by somebody else' >&2; exit 3", RefusedError),
        ("exit 4", NodeNotFoundError),
        ("exit 5", AmbiguousWriteError),
        ("echo 'sudo: a password is required' >&2; exit 1", NotPermittedError),
        ("exit 127", NotPermittedError),
        ("exit 255", AmbiguousWriteError),
        ("kill -9 $$", AmbiguousWriteError),
    ],
)
async def test_each_status_has_its_error(
    program: Callable[[str], NodeWrapper], body: str, error: type[Exception]
) -> None:
    """The program's exit statuses, sudo's refusal and SSH's failure."""
    wrapper = program(body)
    for call in (wrapper.drain("n1", MARK), wrapper.undrain("n1"), wrapper.down("n1", MARK)):
        with pytest.raises(error) as caught:
            await call
        assert caught.type is error


async def test_what_the_program_is_told(program: Callable[[str], NodeWrapper], tmp_path: Path) -> None:
    """The reason stays one word."""
    wrapper = program(f"""printf '<%s>' "$@" >> {tmp_path}/said""")
    await wrapper.drain("n1", MARK)
    await wrapper.undrain("n1")
    assert (tmp_path / "said").read_text() == f"<drain><n1><{MARK}><undrain><n1>"


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=60))
def test_what_ssh_would_hand_over(words: str) -> None:
    """Quoted for SSH, the words come out of the forced command's split as they went in."""
    reason = f"{MARK} {words}"
    line = " ".join(shlex.quote(word) for word in ("drain", "n1", reason))
    assert words_of_caller([], {"SSH_ORIGINAL_COMMAND": line}) == ["drain", "n1", reason]


async def test_a_missing_program(tmp_path: Path) -> None:
    """Nothing was done, and that is known."""
    with pytest.raises(SlurmUnavailableError):
        await NodeWrapper((str(tmp_path / "none"),)).undrain("n1")
