"""From evidence to the drain, over the whole space of policies: no node is drained without all that it takes.

The real activities and the real decisions (diagnosis, policy, approval, guard, the drain itself) are called in the
order of the workflows, on a simulated Slurm. What must have been so is worked out here a second time, from the input
alone. `tests/workflows/test_no_drain_without.py` does it through the workflows themselves.
"""

import asyncio
from collections import Counter
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import count
from typing import NamedTuple

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from relight.activities import contracts as c
from relight.activities.guard import Guard
from relight.activities.guard_standing import StoppedError
from relight.clients.signing_keys import public_half
from relight.clients.slurm import SlurmUnavailableError
from relight.domain.approvals import Approval, begun, hear, hear_signed, request_for, unanswerable
from relight.domain.breaker import Trip
from relight.domain.evidence import Evidence, Interruption, Source
from relight.domain.guard import LEAVE_LASTS, Grant, rule
from relight.domain.guard_standing import Pause, Reset, Standing, standing_cursor
from relight.domain.ledger import Change, RowKind
from relight.domain.permits import Act, Permit
from relight.domain.plan import Decision, Mode, Restart
from relight.domain.policy import Policy
from relight.domain.reports import FaultKind, NodeFault
from relight.domain.rights import Approver, Right
from relight.domain.signatures import SignedDecision, signed
from relight.domain.slurm import NodeFlag, NodeRecord, NodeState
from relight.workflows.care_start import leave_evidence
from relight.workflows.guard_state import case, grant, view

HOUR = timedelta(hours=1)
KEYS = {name: Ed25519PrivateKey.from_private_bytes(name.ljust(32).encode()) for name in ("ada", "bob", "mallory")}
APPROVERS = tuple(Approver(name=name, key=public_half(KEYS[name])) for name in ("ada", "bob"))
DRAINS = "NVRM: Xid (PCI:0000:1b:00): 79, pid=7, GPU has fallen off the bus."
NEVER = (
    "NVRM: Xid (PCI:0000:1b:00): 13, pid=7, Graphics Exception",
    "NVRM: Xid (PCI:0000:1b:00): 63, pid=7, Row remapper",
    "Out of memory: Killed process 991 (python)",
)
NODES = 6
"""The job runs on two of them."""
AGO = st.sampled_from([-3600, -300, -61, -59, -5, 0, 9, 11, 600]) | st.just(-5)
"""Seconds from the interruption; from 60 before to 10 after it is the window."""
NODE = st.integers(0, NODES - 1) | st.sampled_from([0, 1])


class Word(NamedTuple):
    """What somebody says on the plan."""

    after: int
    who: str
    """`bare`: a signal, which proves nobody."""
    approved: bool = True
    flaw: str = ""


class Stop(NamedTuple):
    """Something that stands against it from one stage on."""

    stage: str
    what: str
    node: int = 0


class Case(NamedTuple):
    """All of one input."""

    kind: Interruption = Interruption.CRASH
    kernel: tuple[tuple[int, int, str], ...] = ((0, -5, DRAINS),)
    """Lines of nodes' own kernel logs: node, seconds, text."""
    told: tuple[tuple[int, int, str], ...] = ()
    """A lost GPU as an agent tells it: node, seconds, source."""
    claimed: tuple[tuple[int, int, str], ...] = ()
    """What the job prints: node, seconds, text; as a kernel would print it."""
    signalled: tuple[tuple[int, int, Source], ...] = ()
    """Evidence that came with the detection."""
    policy: Policy = Policy(mode=Mode.AUTO)
    comment: str = ""
    words: tuple[Word, ...] = ()
    stops: tuple[Stop, ...] = ()
    grants: int = 0
    """Nodes that the guard has let go within the hour."""
    wait_to_act: int = 0
    wait_to_drain: int = 0
    unread: str = ""
    """What of Slurm cannot be read when the guard looks, or right before the drain."""
    taken: str = ""
    """What somebody else does with the node meanwhile."""
    unasked: bool = False
    """Whoever starts the drain made up the guard's leave."""


POLICIES = st.builds(
    Policy,
    mode=st.sampled_from([Mode.AUTO, Mode.APPROVE, Mode.APPROVE, Mode.AUTO, Mode.MONITOR]),
    modes=st.dictionaries(
        st.sampled_from(["drain", "restart", "crash", "crash.drain", "gpu_fault", "hang.drain", "hang", "exclude"]),
        st.sampled_from([Permit.AUTO, Permit.APPROVE, Permit.MONITOR, Permit.OFF]),
        max_size=2,
    ),
    trust_temporal_ui=st.booleans(),
    approvers=st.integers(1, 3).map(lambda number: {Right.DRAIN: min(number, 2)}),
    approval_expires=st.sampled_from([timedelta(seconds=60), timedelta(minutes=30)]),
    execution_expires=st.sampled_from([timedelta(seconds=30), timedelta(minutes=10)]),
    drains_per_hour=st.sampled_from([1, 1, 2, 0]),
)
FLAWS = ("digest", "short", "incident", "run", "forged", "replayed", "old")
WORDS = st.lists(
    st.builds(
        Word,
        after=st.sampled_from([1, 20, 59, 61, 1801]) | st.just(1),
        who=st.sampled_from(["ada", "ada", "bob", "bob", "mallory", "bare"]),
        approved=st.sampled_from([True, True, True, False]),
        flaw=st.sampled_from(FLAWS) | st.just(""),
    ),
    max_size=4,
).map(lambda words: tuple(sorted(words)))
STAGES = ("plan", "act", "leave", "drain")
STANDS = ("kill", "cluster", "partition", "elsewhere", "node", "trip", "reset", "unreadable")
STOPS = tuple((Stop(stage, what),) for stage in STAGES for what in STANDS)
STOPS += tuple((Stop(stage, "node", 2),) for stage in STAGES)
ONE_WRONG: dict[str, tuple[object, ...]] = {
    "kind": (Interruption.GPU_FAULT, Interruption.HANG),
    "comment": tuple(f'{{"relight": {{"mode": "{mode}"}}}}' for mode in Mode),
    "stops": STOPS,
    "grants": (1, 2),
    "wait_to_act": (29, 31, 599, 601),
    "wait_to_drain": (29, 31, 299, 301, 601),
    "unread": ("nodes", "topology", "node"),
    "taken": ("drained", "down", "returned"),
    "unasked": (True,),
    "kernel": ((), *(((node, ago, text),) for node, ago, text in ((0, -61, DRAINS), (0, 11, DRAINS), (3, -5, DRAINS)))),
    "words": (
        (),
        (Word(1, "bare"),),
        (Word(1, "mallory"),),
        (Word(1, "ada"), Word(2, "ada")),
        *((Word(1, who, approved=False), Word(2, "ada"), Word(3, "bob")) for who in ("bare", "bob", "mallory")),
        *((Word(1, "ada", flaw=flaw), Word(2, "bob", flaw=flaw)) for flaw in FLAWS),
    ),
}
FIELDS: dict[str, st.SearchStrategy[object]] = {
    **{name: st.sampled_from(values) for name, values in ONE_WRONG.items()},
    "kernel": st.lists(st.tuples(NODE, AGO, st.sampled_from([DRAINS, DRAINS, *NEVER])), max_size=3).map(tuple),
    "told": st.lists(st.tuples(NODE, AGO, st.sampled_from(["nvml", "kernel_log", "exporter"])), max_size=2).map(tuple),
    "claimed": st.lists(st.tuples(NODE, AGO, st.sampled_from([DRAINS, *NEVER])), max_size=2).map(tuple),
    "signalled": st.lists(st.tuples(NODE, AGO, st.sampled_from(list(Source))), max_size=2).map(tuple),
    "policy": POLICIES,
    "words": WORDS,
}
ASKS = Policy(mode=Mode.APPROVE, trust_temporal_ui=True)
GOOD = (
    Case(),
    Case(policy=ASKS, words=(Word(1, "ada"),)),
    Case(policy=Policy(mode=Mode.APPROVE, approvers={Right.DRAIN: 2}), words=(Word(1, "ada"), Word(20, "bob"))),
)
"""Each leads to a drain."""


@st.composite
def cases(draw):
    """A case that leads to a drain, with some of it made anything."""
    names = draw(st.lists(st.sampled_from(sorted(FIELDS)), unique=True, max_size=4))
    return draw(st.sampled_from(GOOD))._replace(**{name: draw(FIELDS[name]) for name in names})


class Played(NamedTuple):
    """What became of one case."""

    drained: dict[str, datetime]
    """By node, when its drain was written."""
    asked_at: datetime | None
    """When people were asked; None: nobody was."""


class Play:
    """One case played on a site; nodes have names of their own, so that nothing is left of the one before."""

    def __init__(self, world, number, case_, ref, detection):
        self.world, self.case, self.number = world, case_, number
        self.nodes = [f"n{number}-{node}" for node in range(NODES)]
        self.ref, self.detection = ref, detection
        self.run = world.run
        self.guard = Guard(world.site)
        self.kill = world.folder / "KILL"
        self.asked_at = None
        self.drained = {}

    async def play(self):
        world, given_ = self.world, self.case
        attempt = await self._failed()
        at = world.clock.now
        found = self.detection(attempt, at, given_.kind, occurred_at=at, evidence=self._signalled(at))
        ref = self.ref(attempt, given_.kind, name=f"i{self.number}")
        await self._evidence(at)
        world.clock.on(20)
        diagnosis = await self.run(world.investigate.diagnose, c.DiagnoseInput(incident=ref, detection=found))
        await self._stop("plan")
        asks = c.PlanInput(incident=ref, detection=found, diagnosis=diagnosis)
        verdict = await self.run(world.investigate.plan, asks)
        if (verdict.outcome and not verdict.plan.acts) or verdict.mode is Mode.MONITOR:
            return self._played()
        approval = None
        if verdict.mode is Mode.APPROVE and (approval := self._approved(verdict, ref)) is None:
            return self._played()
        await self._stop("act")
        began = c.MayActInput(incident=ref, began=found.detected_at, partition="gpu")
        now = await self.run(self.guard.may_act, began)
        if now.stop or (now.unknown and verdict.mode is Mode.AUTO):
            return self._played()
        if approval:
            world.clock.on(given_.wait_to_act)
            approval, void = begun(approval, world.clock.now)
            if void:
                return self._played()
        for node in verdict.plan.drain:
            request = c.DrainRequest(
                incident=ref,
                node=node,
                cls=diagnosis.verdict.signature,
                reason=diagnosis.verdict.summary,
                evidence=leave_evidence(node, diagnosis),
                began=found.detected_at,
                targets=len(verdict.plan.drain),
                restarts=verdict.plan.restart is not Restart.NONE,
            )
            await self._drain(request, approval)
        return self._played()

    def _played(self):
        return Played(self.drained, self.asked_at)

    # --- the scene ---

    async def _failed(self):
        world, given_ = self.world, self.case
        world.clock.on(30 * 86400)
        world.sleeps = 0
        world.slurm.node_records = {
            name: NodeRecord(name=name, state=NodeState.IDLE, partitions=("gpu",)) for name in self.nodes
        }
        world.slurm._failures.clear()
        world.site.enforce(given_.policy)
        object.__setattr__(world.site, "kill_switch", self.kill)
        object.__setattr__(world.site, "approvers", APPROVERS)
        self.kill.unlink(missing_ok=True)
        await self._stand(Standing())
        (world.folder / "train.out").write_text("step 1\n")
        attempt = await world.failed(partition="gpu", comment=given_.comment)
        world.slurm.writes.clear()
        assert attempt.record.nodes == tuple(self.nodes[:2])
        return attempt

    def _signalled(self, at):
        return tuple(
            Evidence(source=source, text=DRAINS, node=self.nodes[node], signature="XID_79", at=_on(at, ago))
            for node, ago, source in self.case.signalled
        )

    async def _evidence(self, at):
        world = self.world
        for node, ago, text in self.case.kernel:
            with (world.folder / f"kern-{self.nodes[node]}.log").open("a") as log:
                log.write(f"{_on(at, ago).isoformat()} {self.nodes[node]} kernel: {text}\n")
        with (world.folder / "train.out").open("a") as log:
            for node, ago, text in self.case.claimed:
                log.write(f"{_on(at, ago).isoformat()} {self.nodes[node]} kernel: {text}\n")
        entries = []
        for number, (node, ago, source) in enumerate(self.case.told):
            fault = NodeFault(
                id=f"f{number}",
                kind=FaultKind.XID,
                at=_on(at, ago),
                text=DRAINS,
                source=source,
                gpu="0000:1b:00",
                xid=79,
            )
            body = {"fault": fault.model_dump(mode="json")}
            entry = world.site.entry(f"fault/{self.number}/{number}", RowKind.FAULT, body)
            entries.append(entry.model_copy(update={"node": self.nodes[node]}))
        await world.ledger.commit(Change(entries=tuple(entries)))

    async def _stop(self, stage):
        world, now = self.world, self.world.clock.now
        for stop in self.case.stops:
            if stop.stage != stage:
                continue
            pause = {"by": "ada", "reason": "power", "since": now, "until": now + HOUR}
            stands = {
                "cluster": Standing(pauses=(Pause(**pause),)),
                "partition": Standing(pauses=(Pause(**pause, partition="gpu"),)),
                "elsewhere": Standing(pauses=(Pause(**pause, partition="cpu"),)),
                "node": Standing(pauses=(Pause(**pause, node=self.nodes[stop.node]),)),
                "trip": Standing(trip=Trip(at=now, why="3 nodes")),
                "reset": Standing(reset=Reset(at=now, by="ada", reason="x")),
            }
            if stop.what == "kill":
                self.kill.touch()
            elif stop.what == "unreadable":
                await world.ledger.commit(Change(cursors={standing_cursor("test"): {"pauses": 3}}))
            else:
                await self._stand(stands[stop.what])

    async def _stand(self, known):
        value = known.model_dump(mode="json")
        await self.world.ledger.commit(Change(cursors={standing_cursor("test"): value}))

    # --- as the workflows go ---

    def _approved(self, verdict, ref):
        """As `Asking` hears it; None where it is not approved."""
        world = self.world
        request = request_for(verdict, ref.id, ref.run_id, owner="alice", now=world.clock.now)
        self.asked_at = world.clock.now
        approval = Approval(request=request)
        if unanswerable(request):
            return None
        for word in self.case.words:
            world.clock.now = self.asked_at + timedelta(seconds=word.after)
            if world.clock.now >= request.until:
                return None
            decision = Decision(approved=word.approved, digest=_digest(word, request.digest), by=word.who, reason="x")
            if word.who == "bare":
                approval = hear(approval, decision, world.clock.now).approval
            else:
                said = _signed(word, request, decision, world.clock.now)
                for _ in range(2 if word.flaw == "replayed" else 1):
                    approval = hear_signed(approval, said, world.clock.now).approval
            if approval.over:
                break
        return approval if approval.approved_at and not approval.rejection else None

    async def _drain(self, request, approval):
        world, given_, node = self.world, self.case, request.node
        await self._stop("leave")
        self._taken(node)
        leave = c.Leave(node=node, granted=True, reason="made up", expires=world.clock.now + LEAVE_LASTS)
        if not given_.unasked:
            leave = await self._leave(request)
        if not leave.granted:
            return
        await self._stop("drain")
        world.clock.on(given_.wait_to_drain)
        if approval and approval.lapsed(world.clock.now):
            return
        if given_.unread == "node":
            world.slurm.fail_next("node", SlurmUnavailableError("frozen"))
        arg = c.DrainInput(
            incident=request.incident,
            node=node,
            cls="XID_79",
            summary="x",
            leave=leave,
            approved_until=approval.act_until if approval else None,
        )
        with suppress(SlurmUnavailableError, StoppedError):  # what counts is what was written
            await self.run(world.nodes.drain, arg)
        if any(call.method == "drain" and call.target == node for call in world.slurm.writes):
            self.drained.setdefault(node, world.clock.now)

    def _taken(self, node):
        """Somebody else's hand on the node, before the guard looks."""
        put = {
            "drained": {"flags": frozenset({NodeFlag.DRAIN}), "reason": "ada: looking at it"},
            "down": {"state": NodeState.DOWN},
        }.get(self.case.taken)
        if put:
            records = self.world.slurm.node_records
            records[node] = records[node].model_copy(update=put)

    async def _leave(self, request):
        """As `GuardCluster` looks, rules and records."""
        world, given_ = self.world, self.case
        now, grants = world.clock.now, []
        for number in range(given_.grants):
            other = self.nodes[NODES - 1 - number]
            grants.append(Grant(node=other, incident="i0", at=now - HOUR / 2, partitions=("gpu",)))
        if given_.taken == "returned":
            entry = world.site.entry(f"reversed/{request.node}", RowKind.REVERSED, {"what": "drain", "by": "bob"})
            await world.ledger.commit(Change(entries=(entry.model_copy(update={"node": request.node}),)))
        if given_.unread in {"nodes", "topology"}:
            world.slurm.fail_next(given_.unread, SlurmUnavailableError("frozen"))
        asked = c.Asked(node=request.node, attempt=request.incident.attempt if request.restarts else None)
        look = await self.run(self.guard.look, c.LookInput(cluster="test", asked=(asked,)))
        granted_, reason = False, look.unknown
        if not look.unknown:
            known = (*look.grants, *grants)
            seen = view(request.node, look, known, now)
            partitions = seen.node.partitions if seen.node else ()
            stop = look.standing.unknown or look.standing.stops_node(now, request.began, request.node, partitions)
            granted_, reason = rule(case(request), seen.model_copy(update={"stop": stop}), known, look.policy, now)
        expires = now + LEAVE_LASTS if granted_ else None
        leave = c.Leave(node=request.node, granted=granted_, reason=reason, expires=expires)
        given = grant(request, look, now) if granted_ else None
        arg = c.LeaveInput(request=request, leave=leave, grant=given, answer=f"{request.node}-1")
        await self.run(world.nodes.record_leave, arg)
        return leave


def _on(at, seconds):
    return at + timedelta(seconds=seconds)


def _digest(word, digest):
    return {"digest": digest[::-1], "short": digest[:7]}.get(word.flaw, digest)


def _signed(word, request, decision, now):
    said = SignedDecision(
        incident="another" if word.flaw == "incident" else request.subject,
        run_id="another" if word.flaw == "run" else request.run_id,
        decision=decision,
        at=now - HOUR if word.flaw == "old" else now,
        nonce=f"{word.who}-{word.after}",
        key=public_half(KEYS["ada" if word.flaw == "forged" else word.who]),
        signature="",
    )
    return signed(said, KEYS["mallory" if word.flaw == "forged" else word.who])


# --- what must have been so, from the input alone ---


def witnessed(given_, node):
    """A platform's witness on that very node within the window, of a kind that isolates nodes."""
    kernel = any(n == node and -60 <= ago <= 10 and text == DRAINS for n, ago, text in given_.kernel)
    return kernel or any(n == node and -60 <= ago <= 10 and source != "exporter" for n, ago, source in given_.told)


def allowed(given_):
    """The guard's word, as far as the input decides it."""
    covers = {"kill", "cluster", "partition", "trip", "reset", "unreadable"}
    # A reset after leave was given does not take it back.
    stands = any(s.what in covers and (s.stage, s.what) != ("drain", "reset") for s in given_.stops)
    # What cannot be read stops what nobody has approved; a drain waits for the guard in any case.
    return not (
        stands
        or given_.taken
        or given_.unread
        or given_.unasked
        or given_.grants >= given_.policy.drains_per_hour
        or given_.wait_to_drain > LEAVE_LASTS.total_seconds()
    )


def approved_at(given_, asked_at):
    """When enough different people had said yes by valid words, before anybody's no and before it expired."""
    policy, people = given_.policy, set()
    for word in given_.words:
        at = _on(asked_at, word.after)
        if at >= asked_at + policy.approval_expires:
            return None
        proven = word.who in {"ada", "bob"} and word.flaw in {"", "replayed"}
        if not word.approved:
            if word.who == "bare" or proven or (word.who in {"ada", "bob"} and word.flaw == "short"):
                return None
        elif proven:
            people.add(word.who)
            if len(people) >= policy.approvers[Right.DRAIN]:
                return at
    return None


def check(given_, play, played):
    """All that a drain takes."""
    for node, at in played.drained.items():
        index = play.nodes.index(node)
        assert index in {0, 1}, "a node that is not the job's"
        assert witnessed(given_, index)
        assert allowed(given_)
        assert not any(stop.what == "node" and stop.node == index for stop in given_.stops)
        permit = given_.policy.permit(given_.kind, Act.DRAIN)
        assert permit in {Permit.AUTO, Permit.APPROVE}
        assert "monitor" not in given_.comment
        if permit is Permit.APPROVE or "approve" in given_.comment or played.asked_at:
            assert played.asked_at is not None
            approved = approved_at(given_, played.asked_at)
            assert approved is not None
            assert at <= approved + given_.policy.execution_expires


@pytest.fixture
def play(make_world, ref, detection):
    """Plays a case, checks it, and says what led to a drain: `auto`, `approve`, or `nothing` did."""
    world, numbers = make_world(), count(1)
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:

        def call(given_):
            one = Play(world, next(numbers), given_, ref, detection)
            played = runner.run(one.play())
            check(given_, one, played)
            return "nothing" if not played.drained else "approve" if played.asked_at else "auto"

        yield call


def test_what_has_all_that_it_takes_is_drained(play):
    """The rest of this file would hold where nothing ever is."""
    assert [play(given_) for given_ in GOOD] == ["auto", "approve", "approve"]


@pytest.mark.parametrize("name", sorted(ONE_WRONG))
def test_one_thing_that_is_not_as_it_should_be(play, name):
    """Each by itself, whoever else says yes."""
    for value in ONE_WRONG[name]:
        for good in GOOD[1:] if name == "words" else GOOD[::2]:
            play(good._replace(**{name: value}))


@pytest.mark.parametrize("source", ["nvml", "kernel_log", "exporter"])
def test_what_an_agent_tells_is_a_witness_and_what_an_exporter_shows_is_none(play, source):
    """Within the window, and of the node that it is told of."""
    told = [play(Case(kernel=(), told=((0, ago, source),))) for ago in (-61, -5, 11)]
    assert told == ["nothing", "nothing" if source == "exporter" else "auto", "nothing"]


def test_no_drain_without_evidence_leave_and_approval(play):
    """Whatever the policy, the evidence, people's words, and what happens in between. And some are drained."""
    seen = Counter()

    @settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
    @given(cases())
    def any_case(given_):
        seen[play(given_)] += 1

    any_case()
    assert min(seen["auto"], seen["approve"], seen["nothing"]) > 0, seen
