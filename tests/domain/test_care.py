"""What becomes of a node in quarantine, over the whole space of what can be known of it."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.domain.care import (
    CHECKS_LAST,
    FIRST_LOOK_AGAIN,
    LAST_LOOK_AGAIN,
    CareSituation,
    Hold,
    Next,
    Remedy,
    Repair,
    Word,
    WordKind,
    decide_care,
    gpus_of,
    hold,
    jobs_on,
    look_again_after,
    open_repairs,
    really_drained,
)
from relight.domain.care_digest import care_digest
from relight.domain.care_ticket import MAX_TICKET, TicketFacts, ticket
from relight.domain.evidence import Answer, Evidence, Source
from relight.domain.lemons import LEMON, REPLACE
from relight.domain.permits import Permit
from relight.domain.reports import CheckName, GpuCard, NodeCheck, Result
from relight.domain.rights import Right
from relight.domain.slurm import ENDED, JobFlag, JobRecord, JobState, NodeFlag, NodeRecord, NodeState

NOW = datetime(2026, 11, 30, 9, 0, tzinfo=UTC)
MARK = "relight:i1:"
OURS = "relight:i1:XID_94: memory error"
AGES = st.integers(0, 7200).map(lambda seconds: NOW - timedelta(seconds=seconds))
REASONS = st.sampled_from(
    [OURS, f"{OURS} : Not responding", "", "bad fan", "relight:i2:XID_79: another's", "Action:Reboot"]
)
NODES = st.builds(
    NodeRecord,
    name=st.just("n2"),
    state=st.sampled_from(list(NodeState)),
    flags=st.frozensets(st.sampled_from(list(NodeFlag)), max_size=3),
    reason=REASONS,
    gres=st.sampled_from(["", "gpu:8", "gpu:h100:8(S:0-1)"]),
)
CHECKS = st.lists(
    st.builds(NodeCheck, name=st.sampled_from(CheckName), result=st.sampled_from(Result), text=st.text(max_size=20)),
    max_size=5,
    unique_by=lambda check: check.name,
).map(tuple)
WORDS = st.none() | st.builds(Word, kind=st.sampled_from(WordKind), by=st.just("ada"), at=AGES)
SITUATIONS = st.builds(
    CareSituation,
    mark=st.just(MARK),
    node=st.none() | NODES,
    drained=st.sampled_from(Answer),
    agent=st.sampled_from(Answer),
    checks=CHECKS,
    checked_at=st.none() | AGES,
    faults=st.lists(st.text(max_size=20), max_size=2).map(tuple),
    repairs=st.lists(
        st.builds(Repair, remedy=st.sampled_from([r for r in Remedy if r]), text=st.text(max_size=20), at=AGES),
        max_size=2,
    ).map(tuple),
    released=WORDS,
    kept=WORDS,
    score=st.floats(0, 20),
    requires=st.lists(st.sampled_from(CheckName), max_size=2, unique=True).map(tuple),
    permit=st.sampled_from(Permit),
    now=st.just(NOW),
)


def well(**fields) -> CareSituation:
    """A drained node of ours on which all is well; with these changes."""
    given = {
        "mark": MARK,
        "node": NodeRecord(name="n2", state=NodeState.IDLE, flags={NodeFlag.DRAIN}, reason=OURS, gres="gpu:8"),
        "drained": Answer.YES,
        "agent": Answer.YES,
        "checks": tuple(NodeCheck(name=name, result=Result.PASSED) for name in CheckName),
        "checked_at": NOW - timedelta(minutes=1),
        "permit": Permit.AUTO,
        "now": NOW,
    }
    return CareSituation(**{**given, **fields})


@given(SITUATIONS)
def test_a_node_is_returned_only_when_all_is_known_and_well(situation):
    """Never on a foreign mark, never before it is empty, never on a check that failed or could not be made.

    Nor without an agent, with a fault since, with a repair that nobody has called done, or against a person's word.
    """
    verdict = decide_care(situation)
    if verdict.next is not Next.RETURN:
        assert verdict.permit is Permit.OFF
        return
    assert situation.node is not None
    assert hold(situation.node, MARK) is Hold.OURS
    assert situation.node.reason.startswith(MARK)
    assert situation.drained is Answer.YES
    assert situation.agent is Answer.YES
    results = {check.name: check.result for check in situation.checks}
    assert set(results.values()) <= {Result.PASSED, Result.NOT_POSSIBLE}
    needed = {CheckName.DISK, CheckName.NETWORK, *situation.requires}
    needed |= {CheckName.NVML} if situation.node.gres else set()
    assert all(results.get(name) is Result.PASSED for name in needed)
    assert situation.checked_at is not None
    assert NOW - situation.checked_at <= CHECKS_LAST
    assert not situation.faults
    assert not open_repairs(situation)
    if situation.kept:
        assert situation.released is not None
        assert situation.released.at >= situation.kept.at
    assert list(Permit).index(verdict.permit) <= list(Permit).index(situation.permit)
    if situation.score >= LEMON:
        assert verdict.permit is not Permit.AUTO


@given(SITUATIONS, st.sampled_from(CheckName), st.sampled_from([Result.FAILED, Result.UNKNOWN]))
def test_one_check_that_did_not_pass_is_enough(situation, name, result):
    """Whatever else is known."""
    others = tuple(check for check in situation.checks if check.name is not name)
    worse = situation.model_copy(update={"checks": (*others, NodeCheck(name=name, result=result))})
    assert decide_care(worse).next is not Next.RETURN


def test_a_well_node_is_returned():
    """As far as the policy lets us; what was not possible is said."""
    verdict = decide_care(well())
    assert (verdict.next, verdict.permit, verdict.remedy) == (Next.RETURN, Permit.AUTO, Remedy.NONE)
    skipped = tuple(
        c.model_copy(update={"result": Result.NOT_POSSIBLE}) if c.name is CheckName.EXERCISE else c
        for c in well().checks
    )
    assert "not possible there: exercise" in decide_care(well(checks=skipped)).reason
    assert decide_care(well(checks=skipped, requires=(CheckName.EXERCISE,))).next is Next.KEEP


@pytest.mark.parametrize(
    ("changes", "next_", "why"),
    [
        ({"node": None}, Next.KEEP, "could not be read"),
        ({"drained": Answer.NO, "still_on_it": "job 7 is still on it"}, Next.KEEP, "job 7"),
        ({"agent": Answer.UNKNOWN, "checks": ()}, Next.HAND_OVER, "no agent"),
        ({"agent": Answer.NO, "checks": ()}, Next.HAND_OVER, "silent"),
        ({"checks": (), "problem": "n2 gave no answer within 1080 s"}, Next.KEEP, "gave no answer"),
        ({"checked_at": NOW - timedelta(hours=1)}, Next.KEEP, "too old"),
        ({"faults": ("Xid 48",)}, Next.HAND_OVER, "Xid 48"),
        ({"kept": Word(kind=WordKind.KEEP, by="ada", reason="noisy fan", at=NOW)}, Next.KEEP, "ada keeps it out"),
    ],
)
def test_why_it_stays_out(changes, next_, why):
    """Each in words for a person."""
    verdict = decide_care(well(**changes))
    assert verdict.next is next_
    assert why in verdict.reason


def test_a_reboot_is_no_repair():
    """However well NVML reads: until a person says that it is repaired, and again for what happens after that."""
    fault = Repair(remedy=Remedy.REBOOT, text="Xid 79: fallen off the bus", at=NOW - timedelta(hours=2))
    verdict = decide_care(well(repairs=(fault,)))
    assert (verdict.next, verdict.remedy) == (Next.HAND_OVER, Remedy.REBOOT)
    released = Word(kind=WordKind.RELEASE, by="ada", at=NOW - timedelta(hours=1), verified=True)
    assert decide_care(well(repairs=(fault,), released=released)).next is Next.RETURN
    later = fault.model_copy(update={"at": NOW - timedelta(minutes=5)})
    assert decide_care(well(repairs=(fault, later), released=released)).next is Next.HAND_OVER


def test_a_lemon_is_returned_by_people_and_proposed_for_replacement():
    """Its checks are well, its history is not."""
    assert decide_care(well(score=LEMON)).permit is Permit.APPROVE
    assert decide_care(well(score=LEMON - 0.1)).permit is Permit.AUTO
    assert decide_care(well(score=REPLACE)).remedy is Remedy.REPLACE
    assert decide_care(well(score=LEMON, permit=Permit.MONITOR)).permit is Permit.MONITOR


@pytest.mark.parametrize(
    ("reason", "flags", "state", "expected"),
    [
        (OURS, {NodeFlag.DRAIN}, NodeState.IDLE, Hold.OURS),
        (f"{OURS} : Not responding", {NodeFlag.DRAIN, NodeFlag.NOT_RESPONDING}, NodeState.DOWN, Hold.OURS),
        (OURS, set(), NodeState.DOWN, Hold.OURS),
        (OURS, set(), NodeState.IDLE, Hold.FREED),
        ("", set(), NodeState.IDLE, Hold.FREED),
        ("bad fan", {NodeFlag.DRAIN}, NodeState.IDLE, Hold.TAKEN),
        ("relight:i2:X: other", {NodeFlag.DRAIN}, NodeState.IDLE, Hold.TAKEN),
        ("relight:i11:X: other", {NodeFlag.DRAIN}, NodeState.IDLE, Hold.TAKEN),
        ("", {NodeFlag.DRAIN}, NodeState.IDLE, Hold.FREED),
    ],
)
def test_whose_a_node_is(reason, flags, state, expected):
    """By the mark of this very incident; slurmctld appends remarks of its own."""
    assert hold(NodeRecord(name="n2", state=state, flags=flags, reason=reason), MARK) is expected


def job(state=JobState.RUNNING, *flags, nodes=("n1", "n2")) -> JobRecord:
    return JobRecord(job_id=7, state=state, flags=frozenset(flags), nodes=nodes, submit_time=NOW)


@given(st.sampled_from(JobState), st.frozensets(st.sampled_from(JobFlag), max_size=2), NODES)
def test_drained_is_not_the_drain_flag(state, flags, node):
    """No job in any state but an ended or queued one, nothing completing, and the node idle or down."""
    found = really_drained(node, (job(state, *flags),))
    if found.answer is Answer.YES:
        assert NodeFlag.DRAIN in node.flags or node.state is NodeState.DOWN
        assert node.state in {NodeState.IDLE, NodeState.DOWN}
        assert NodeFlag.COMPLETING not in node.flags
        assert state in ENDED | {JobState.PENDING}
        assert JobFlag.COMPLETING not in flags
    else:
        assert found.text


def test_a_suspended_job_still_holds_its_node():
    """Slurm may show such a node idle."""
    assert jobs_on("n2", (job(JobState.SUSPENDED), job(nodes=("n1",)))) == (job(JobState.SUSPENDED),)


@pytest.mark.parametrize(
    ("gres", "count"),
    [
        ("", 0),
        ("gpu:8", 8),
        ("gpu:h100:8(S:0-1)", 8),
        ("gpu", 1),
        ("gpu:a100:4,gpu:v100:2", 6),
        ("mps:100", 0),
        ("gpu:x", 1),
    ],
)
def test_how_many_gpus_slurm_says(gres, count):
    """Gres as slurm.conf and `scontrol` write it."""
    assert gpus_of(NodeRecord(name="n2", state=NodeState.IDLE, gres=gres)) == count


def test_waits_grow_and_are_bounded():
    """A node that is away for a month is not asked for every quarter of an hour."""
    waits = [look_again_after(times) for times in range(20)]
    assert (waits[0], waits[-1]) == (FIRST_LOOK_AGAIN, LAST_LOOK_AGAIN)
    assert waits == sorted(waits)


def test_an_approval_is_for_one_act_on_one_node_under_one_mark():
    """Nothing of it can be used for another."""
    digests = {
        care_digest(cluster, node, mark, right)
        for cluster in ("a", "b")
        for node in ("n1", "n2")
        for mark in (MARK, "relight:i2:")
        for right in (Right.RETURN, Right.DOWN, Right.REBOOT, Right.REPLACE)
    }
    assert len(digests) == 32


# --- the ticket -------------------------------------------------------------------------------------------------------


def facts(**fields) -> TicketFacts:
    seen = Evidence(
        source=Source.KERNEL_LOG, text="NVRM: Xid (PCI:0000:43:00): 79", node="n2", gpu="0000:43:00", at=NOW
    )
    cards = tuple(GpuCard(gpu=f"0000:{n}3:00", index=n, uuid=f"GPU-{n}", serial=f"S{n}", model="H100") for n in (3, 4))
    given = {"cluster": "main", "care": "n1a", "incident": "i1", "cls": "XID_79", "summary": "a GPU fell off the bus"}
    more = {"jobs": ("7 llama of alice",), "evidence": (seen,), "cards": cards, "folder": "/kept", "since": NOW}
    return TicketFacts(**{**given, **more, **fields})


def test_the_ticket_says_what_who_repairs_asks_for():
    """Node, what is asked, which job, which GPU by serial, what was checked, what Slurm shows, what comes next."""
    fault = Repair(remedy=Remedy.REBOOT, text="Xid 79", at=NOW, gpu="0000:43:00")
    situation = well(repairs=(fault,), score=3.2, score_why=("3 x drained (2.9)",))
    text = ticket(facts(), situation, decide_care(situation))
    first = text.splitlines()[0]
    assert first == "n2 (main): reboot the node"
    for wanted in ("7 llama of alice", "serial S4", "uuid GPU-4", "Xid (PCI:0000:43:00): 79", "IDLE+DRAIN", "a lemon"):
        assert wanted in text
    assert "* 4  0000:43:00" in text
    assert "relight release n2" in text


@given(SITUATIONS)
def test_a_ticket_can_always_be_written(situation):
    """Whatever is known or not, and no longer than a mail."""
    text = ticket(facts(), situation, decide_care(situation))
    assert 0 < len(text) <= MAX_TICKET
