"""A node in quarantine: what is waited for, kept and judged, and what is written to it, if at all."""

import json
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from relight.activities import care_contracts as k
from relight.activities import contracts as c
from relight.activities.care import NodeCare
from relight.activities.care_acts import CareActs
from relight.activities.care_checks import CheckNode, peers
from relight.activities.care_evidence import KeepEvidence, folder_of
from relight.activities.care_faults import Repairs, asked_by_xid
from relight.activities.care_history import scores
from relight.activities.care_judge import JudgeNode
from relight.activities.ingest import NodeSight
from relight.activities.records import row
from relight.activities.restart import ReadBackError
from relight.attribution.catalogue import load
from relight.clients.ledger import LedgerUnavailableError
from relight.clients.slurm import AmbiguousWriteError, RefusedError, SlurmUnavailableError
from relight.domain.care import CareOutcome, CarePhase, Hold, Next, Remedy, Word, WordKind
from relight.domain.evidence import Answer, Evidence, Source
from relight.domain.guard import NodeAct
from relight.domain.ledger import Change, RowKind
from relight.domain.permits import Permit
from relight.domain.plan import Mode
from relight.domain.policy_rules import Changes, Match, Rule, SitePolicy, node_permit
from relight.domain.reports import CheckName, FaultKind, NodeCheck, NodeFault, ProbeAnswer, ProbeKind, Result
from relight.domain.rights import Right
from relight.domain.slurm import JobFlag, JobState, NodeFlag, NodeState

NODE = "n3"
REASON = "relight:i1:XID_94: memory error"
AUTO = SitePolicy(mode=Mode.AUTO, modes={"return": "auto", "down": "auto", "reboot": "approve"})


class Care:
    """n3, drained by us for incident i1; a job ran there and is gone."""

    def __init__(self, world, ref, attempt) -> None:
        self.world = world
        self.ref = k.CareRef(
            **{**ref(attempt).model_dump(), "id": "n1a", "workflow_id": f"node/test/{NODE}"}, node=NODE, incident="i1"
        )
        self.acts = CareActs(world.site)
        self.care = NodeCare(world.site)
        self.put(flags=frozenset({NodeFlag.DRAIN}), reason=REASON, reason_user="root")

    def put(self, **fields) -> None:
        """The node becomes this."""
        nodes = self.world.slurm.node_records
        nodes[NODE] = nodes[NODE].model_copy(update=fields)

    @property
    def node(self):
        return self.world.slurm.node_records[NODE]

    def act(self, right=Right.RETURN, **fields) -> k.NodeActInput:
        given = {"care": self.ref, "right": right, "round": 1, "cls": "XID_94", "summary": "memory error"}
        return k.NodeActInput(**{**given, "checked_at": self.world.clock.now, **fields})

    async def back(self, **fields) -> k.Acted:
        return await self.world.run(self.acts.return_node, self.act(**fields))

    async def kinds(self):
        return [each.kind for each in await self.world.ledger.rows(incident="n1a")]


@pytest.fixture
async def care(make_world, ref):
    """A node in care, on a site where all may be done by itself."""
    world = make_world(policy=AUTO)
    return Care(world, ref, await world.failed())


# --- return -----------------------------------------------------------------------------------------------------------


async def test_a_node_is_returned_once(care):
    """Meant, written, read back, written down; the same asked again writes nothing."""
    first = await care.back()
    assert (first.done, first.outcome, care.node.eligible, care.node.reason) == (True, None, True, "")
    assert await care.back() == first
    assert care.world.writes == ["undrain"]
    assert await care.kinds() == [RowKind.INTENT, RowKind.EFFECT]


@pytest.mark.parametrize(
    ("fields", "outcome"),
    [
        ({"reason": "bad fan"}, CareOutcome.OVERRIDDEN),
        ({"reason": "relight:i2:XID_79: another incident"}, CareOutcome.OVERRIDDEN),
        ({"flags": frozenset(), "reason": ""}, CareOutcome.OVERRIDDEN),
    ],
)
async def test_only_our_own_mark_is_undone(care, fields, outcome):
    """Whatever was judged before: the last look before the write finds a person's hand."""
    care.put(**fields)
    acted = await care.back()
    assert (acted.outcome, acted.done, care.world.writes) == (outcome, False, [])
    assert (await care.back()).outcome is outcome


async def test_it_is_not_returned_on_what_no_longer_holds(care):
    """Checks too old, an approval that lapsed, a job on it again, a policy that has changed, a name that is gone."""
    now = care.world.clock.now
    old = await care.back(checked_at=now - timedelta(hours=1), round=2)
    assert (old.done, "too old" in old.text) == (False, True)
    assert "approval" in (await care.back(approved_until=now - timedelta(seconds=1), round=3)).text
    care.world.site.enforce(SitePolicy(mode=Mode.AUTO))
    assert "monitor" in (await care.back(round=4)).text
    care.world.site.enforce(AUTO)
    job = care.world.slurm.submit(nodes=1)
    records = care.world.slurm.job_records
    records[job] = records[job].model_copy(update={"state": JobState.SUSPENDED, "nodes": (NODE,)})
    assert f"job {job}" in (await care.back(round=5)).text
    del care.world.slurm.node_records[NODE]
    assert (await care.back(round=6)).outcome is CareOutcome.GONE
    assert care.world.writes == []


async def test_without_a_ledger_nothing_is_returned(care):
    """No ledger, no mutation."""
    care.world.ledger.refused = {RowKind.INTENT}
    with pytest.raises(LedgerUnavailableError):
        await care.back()
    assert care.world.writes == []


@pytest.mark.parametrize("after", [True, False])
async def test_a_return_whose_answer_was_lost_is_looked_for(care, after):
    """With effect it is found; without, it is not taken for done, and made by the next try."""
    care.world.slurm.fail_next("undrain", AmbiguousWriteError("the answer was lost"), after=after)
    if not after:
        with pytest.raises(ReadBackError):
            await care.back()
    assert (await care.back()).done
    assert care.node.eligible


async def test_a_lost_effect_is_told_as_ours(care):
    """The ledger went away after the write: the next try finds the node free, and that we meant it to be."""
    care.world.ledger.refused = {RowKind.EFFECT}
    with pytest.raises(LedgerUnavailableError):
        await care.back()
    care.world.ledger.refused = set()
    acted = await care.back()
    assert (acted.done, acted.outcome, care.world.writes) == (True, None, ["undrain"])


async def test_the_wrapper_may_refuse(care):
    """It looks once more, as root; its refusal is raised and nothing is written down as done."""
    care.world.slurm.fail_next("undrain", RefusedError("not Relight's"))
    with pytest.raises(RefusedError):
        await care.back()
    assert await care.kinds() == [RowKind.INTENT]


# --- down -------------------------------------------------------------------------------------------------------------


@pytest.fixture
async def stuck(care):
    """n3 is not drained, and hangs in COMPLETING; leave was granted, and stands in the ledger."""
    care.put(state=NodeState.ALLOCATED, flags=frozenset({NodeFlag.COMPLETING}), reason="", reason_user="")
    now = care.world.clock.now
    leave = c.Leave(
        node=NODE, granted=True, reason="down 1 of 1", expires=now + timedelta(minutes=5), action=NodeAct.DOWN
    )

    async def down(*, source=Source.SLURMCTLD, granted=True, action=NodeAct.DOWN, **fields):
        seen = Evidence(source=source, text="completing", node=NODE)
        told = leave.model_copy(update={"granted": granted, "action": action})
        body = {"leave": told.model_dump(mode="json"), "evidence": [seen.model_dump(mode="json")]}
        entry = row(care.world.site, care.ref, f"leave-{NODE}", RowKind.LEAVE, body, node=NODE)
        await care.world.ledger.commit(Change(entries=(entry,)))
        given = {"leave": leave, "stuck_since": now - timedelta(hours=1), **fields}
        return await care.world.run(care.acts.down_node, care.act(Right.DOWN, **given))

    return down


async def test_a_node_that_hangs_is_set_down(care, stuck):
    """With our mark, once."""
    acted = await stuck()
    assert acted.done
    assert (care.node.state, care.node.reason) == (NodeState.DOWN, REASON)
    assert await stuck() == acted
    assert care.world.writes == ["down"]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"leave": None}, "leave"),
        ({"source": Source.JOB_LOG}, "no leave is on record"),
        ({"granted": False}, "no leave is on record"),
        ({"action": NodeAct.DRAIN}, "no leave is on record"),
        ({"stuck_since": None}, "UnkillableStepTimeout"),
    ],
)
async def test_what_stands_against_a_down(care, stuck, fields, why):
    """No leave, leave for something else, leave on a job's word, or KillWait and UnkillableStepTimeout not over."""
    acted = await stuck(**fields)
    assert (acted.done, acted.outcome, care.world.writes) == (False, None, [])
    assert why in acted.text


async def test_a_node_on_which_a_job_runs_is_not_set_down(care, stuck):
    """It may be completing one job after the other, and to set it down would end healthy work."""
    job = care.world.slurm.submit(nodes=1)
    records = care.world.slurm.job_records
    records[job] = records[job].model_copy(update={"state": JobState.RUNNING, "nodes": (NODE,)})
    assert "would be lost" in (await stuck()).text
    assert care.world.writes == []


async def test_limits_of_killing_are_respected(care, stuck):
    """KillWait 30 s, UnkillableStepTimeout 60 s, and 30 s more."""
    now = care.world.clock.now
    assert not (await stuck(stuck_since=now - timedelta(seconds=119))).done
    assert care.world.writes == []


@pytest.mark.parametrize(
    ("fields", "outcome"),
    [
        ({"state": NodeState.IDLE, "flags": frozenset()}, CareOutcome.CLEARED),
        ({"flags": frozenset({NodeFlag.DRAIN, NodeFlag.COMPLETING}), "reason": "bad fan"}, CareOutcome.OVERRIDDEN),
    ],
)
async def test_a_node_that_came_through_or_is_anothers_is_left_alone(care, stuck, fields, outcome):
    """As the last look shows it."""
    care.put(**fields)
    assert (await stuck()).outcome is outcome
    assert care.world.writes == []


# --- the platform's own repair ----------------------------------------------------------------------------------------


async def test_hyperpods_word_takes_the_place_of_our_mark(care):
    """Only with a person's yes, on a site that says so, of an empty node; then it is no longer ours."""
    arg = care.act(Right.REBOOT, approved_until=care.world.clock.now + timedelta(minutes=10))
    assert "hyperpod" in (await care.world.run(care.acts.ask_platform, arg)).text
    object.__setattr__(care.world.site, "platform_repairs", True)
    unasked = arg.model_copy(update={"round": 2, "approved_until": None})
    assert "approve" in (await care.world.run(care.acts.ask_platform, unasked)).text
    assert care.world.writes == []
    assert (await care.world.run(care.acts.ask_platform, arg.model_copy(update={"round": 3}))).done
    assert care.node.reason == "Action:Reboot"
    assert (await care.back(round=4)).outcome is CareOutcome.OVERRIDDEN


# --- waiting ----------------------------------------------------------------------------------------------------------


async def test_really_drained_is_waited_for(care):
    """The flag is there all the while; a suspended job holds the node although Slurm may show it idle."""
    world = care.world
    job = world.slurm.submit(nodes=1)
    records = world.slurm.job_records
    records[job] = records[job].model_copy(update={"state": JobState.SUSPENDED, "nodes": (NODE,)})

    def completing():
        done = {"state": JobState.CANCELLED, "flags": frozenset({JobFlag.COMPLETING})}
        records[job] = records[job].model_copy(update=done)

    world.after(60, completing)
    world.after(90, lambda: records.pop(job))
    began = world.clock.now
    held = await world.run(care.care.await_drained, k.AwaitDrainedInput(care=care.ref))
    assert held.hold is Hold.OURS
    assert held.text.startswith("drained")
    assert world.clock.now - began >= timedelta(seconds=90)


@pytest.mark.parametrize(
    ("fields", "hold"),
    [({"reason": "bad fan", "reason_user": "ada"}, Hold.TAKEN), ({"flags": frozenset(), "reason": ""}, Hold.FREED)],
)
async def test_a_persons_hand_ends_the_wait(care, fields, hold):
    """While it drains, and while it waits for people."""
    care.put(state=NodeState.MIXED)
    care.world.after(30, lambda: care.put(**fields))
    held = await care.world.run(care.care.await_drained, k.AwaitDrainedInput(care=care.ref))
    assert held.hold is hold
    again = await care.world.run(care.care.await_change, k.AwaitChangeInput(care=care.ref))
    assert (again.hold, again.by) == (hold, "ada" if hold is Hold.TAKEN else "")


async def test_a_failed_read_is_no_change(care):
    """It raises; Temporal tries again."""
    care.world.slurm.fail_next("node", SlurmUnavailableError("timed out"))
    with pytest.raises(SlurmUnavailableError):
        await care.world.run(care.care.await_change, k.AwaitChangeInput(care=care.ref))


async def test_what_a_person_undid_is_written_down_for_the_guard(care):
    """Under the incident that had drained the node, with the evidence that it was drained on."""
    seen = Evidence(source=Source.NVML, text="Xid 94", node=NODE)
    arg = k.RecordInput(
        care=care.ref,
        step="9-closed",
        phase=CarePhase.CLOSED,
        text="it is back in service",
        at=care.world.clock.now,
        outcome=CareOutcome.OVERRIDDEN,
        reversed="drain",
        by="root",
        evidence=(seen,),
    )
    for _ in range(2):
        await care.world.run(care.care.record, arg)
    (reversal,) = await care.world.ledger.rows(node=NODE, kind=RowKind.REVERSED)
    assert (reversal.incident, reversal.body["what"], reversal.body["evidence"]) == ("i1", "drain", ["Xid 94"])
    (closed,) = await care.world.ledger.rows(node=NODE, kind=RowKind.CARE)
    assert closed.body["outcome"] == "overridden"


# --- checks -----------------------------------------------------------------------------------------------------------


class Agents:
    """The nodes' agents, as far as a test lets them be heard of."""

    def __init__(self, sight=None, answer=None) -> None:
        self._sight, self._answer, self.asked = sight, answer, []

    def sight(self, _node):
        return self._sight

    async def ask(self, _node, request, _within):
        self.asked.append(request)
        return self._answer


WELL = tuple(NodeCheck(name=name, result=Result.PASSED) for name in CheckName)


async def test_the_nodes_agent_is_asked(care):
    """How many GPUs there must be, and which neighbours to reach, come from Slurm."""
    now = care.world.clock.now
    agents = Agents(NodeSight(NODE, now, "b"), ProbeAnswer(id="x", at=now, checks=WELL))
    for name in ("n1", "n4"):
        nodes = care.world.slurm.node_records
        nodes[name] = nodes[name].model_copy(update={"address": f"10.0.0.{name[1]}", "port": 6818})
    care.put(gres="gpu:8")
    found = await care.world.run(CheckNode(care.world.site, agents).check, k.CheckNodeInput(care=care.ref, round=2))
    assert (found.agent, found.checks, found.problem) == (Answer.YES, WELL, "")
    (asked,) = agents.asked
    assert (asked.kind, asked.gpus, asked.reach) == (ProbeKind.CHECK, 8, ("10.0.0.4:6818", "10.0.0.1:6818"))


@pytest.mark.parametrize("heard_once", [False, True])
async def test_an_agent_that_is_not_heard_is_neither_pass_nor_fail(care, heard_once):
    """Never heard of here, or silent: said, after some beats, and nothing is asked."""
    sight = NodeSight(NODE, care.world.clock.now - timedelta(hours=1), "b") if heard_once else None
    agents = Agents(sight)
    found = await care.world.run(CheckNode(care.world.site, agents).check, k.CheckNodeInput(care=care.ref, round=1))
    assert found.agent is (Answer.NO if heard_once else Answer.UNKNOWN)
    assert (found.checks, agents.asked) == ((), [])


def test_lost_nodes_are_nobodys_peers(care):
    """A connection that fails there says nothing about this node."""
    nodes = tuple(
        node.model_copy(update={"address": "10.0.0.1", "port": 1, "state": NodeState.DOWN})
        for node in care.world.slurm.node_records.values()
    )
    assert peers(NODE, nodes) == ()


# --- judgement --------------------------------------------------------------------------------------------------------


@pytest.fixture
def judge(care):
    """Judges n3 after these checks."""

    async def call(**fields):
        now = care.world.clock.now
        checked = {"agent": Answer.YES, "checks": WELL, "began": now - timedelta(minutes=2), "at": now}
        checked |= {name: fields.pop(name) for name in ("agent", "checks") if name in fields}
        since = now - timedelta(hours=2)
        seen = Evidence(source=Source.KERNEL_LOG, text="NVRM: Xid (PCI:0000:43:00): 94, pid=7", node=NODE, at=since)
        given = {"care": care.ref, "round": 1, "since": since, "evidence": (seen,), "cls": "XID_94"}
        arg = k.JudgeInput(**{**given, "checked": k.Checked(**checked), **fields})
        return await care.world.run(JudgeNode(care.world.site).judge, arg)

    return call


async def test_a_well_node_may_return(care, judge):
    """A contained memory error asks for no reset; policy, checks and history stand in the ledger with the verdict."""
    judged = await judge()
    assert (judged.verdict.next, judged.verdict.permit) == (Next.RETURN, Permit.AUTO)
    (written,) = await care.world.ledger.rows(node=NODE, kind=RowKind.CARE)
    assert (written.body["next"], len(written.body["checks"])) == ("return", len(CheckName))
    assert "output" not in written.body["checks"][0]


def text_of(path):
    return Path(path).read_text()


async def test_a_fault_that_asks_for_a_reboot_is_handed_over_until_it_is_released(care, judge):
    """With a ticket; a later word of a person lets it return."""
    since = care.world.clock.now - timedelta(hours=2)
    lost = Evidence(
        source=Source.KERNEL_LOG, text="NVRM: Xid (PCI:0000:43:00): 79, GPU has fallen off", node=NODE, at=since
    )
    judged = await judge(evidence=(lost,))
    assert (judged.verdict.next, judged.verdict.remedy) == (Next.HAND_OVER, Remedy.REBOOT)
    assert "Xid (PCI:0000:43:00): 79" in text_of(judged.ticket)
    released = Word(kind=WordKind.RELEASE, by="ada", at=care.world.clock.now - timedelta(minutes=5), verified=True)
    assert (await judge(evidence=(lost,), released=released)).verdict.next is Next.RETURN


async def test_what_the_agent_tells_during_the_checks_counts(care, judge):
    """The exercise has brought out what was wrong."""
    fault = NodeFault(id="x", kind=FaultKind.XID, at=care.world.clock.now, text="Xid 48", source="nvml", xid=48)
    body = {"fault": fault.model_dump(mode="json"), "attempts": []}
    entry = care.world.site.entry("fault/x", RowKind.FAULT, body).model_copy(update={"node": NODE})
    await care.world.ledger.commit(Change(entries=(entry,)))
    judged = await judge()
    assert (judged.verdict.next, judged.verdict.remedy) == (Next.HAND_OVER, Remedy.RESET)
    assert judged.score > 0


async def test_hyperpod_is_proposed_only_where_the_site_says_so(care, judge):
    """A reset needs a reboot there."""
    lost = Evidence(source=Source.KERNEL_LOG, text="NVRM: Xid (PCI:0000:43:00): 48, DBE", node=NODE)
    assert (await judge(evidence=(lost,))).action is None
    object.__setattr__(care.world.site, "platform_repairs", True)
    judged = await judge(evidence=(lost,), round=2)
    assert (judged.action, judged.action_permit) == (Right.REBOOT, Permit.APPROVE)


async def test_a_lemon_is_known_by_its_history(care):
    """Drained three times within days, by the effects in the ledger."""
    for number in range(3):
        mine = care.ref.model_copy(update={"id": f"i{number}", "run_id": f"r{number}"})
        done = c.Done(text="drained", at=care.world.clock.now)
        body = {"step": f"drain-{NODE}", "done": done.model_dump(mode="json")}
        await care.world.ledger.commit(
            Change(entries=(row(care.world.site, mine, f"drain-{NODE}", RowKind.EFFECT, body, node=NODE),))
        )
    found = await scores(care.world.site, (NODE, "n1"))
    assert (found[NODE].value, found["n1"].value) == (3.0, 0.0)
    assert found[NODE].lemon


@pytest.mark.parametrize(
    ("number", "text", "remedy"),
    [
        (13, "Xid 13", Remedy.NONE),
        (31, "Xid 31", Remedy.NONE),
        (45, "Xid 45", Remedy.NONE),
        (48, "Xid 48", Remedy.RESET),
        (63, "Xid 63", Remedy.NONE),
        (64, "Xid 64", Remedy.RESET),
        (74, "Xid 74", Remedy.RESET),
        (79, "Xid 79", Remedy.REBOOT),
        (94, "Xid 94", Remedy.NONE),
        (95, "Xid 95", Remedy.RESET),
        (122, "Xid 122", Remedy.REPLACE),
        (154, "changed from 0x0 (None) to 0x1 (GPU Reset Required)", Remedy.RESET),
        (154, "changed from 0x0 (None) to 0x2 (Node Reboot Required)", Remedy.REBOOT),
        (154, "changed from 0x1 to 0x0 (None)", Remedy.NONE),
        (9999, "Xid 9999", Remedy.REPLACE),
    ],
)
def test_what_nvidia_asks_for(number, text, remedy):
    """Its catalogue's immediate action; of an Xid that it does not have, that somebody looks."""
    assert asked_by_xid(number, text) is remedy


def test_a_remapping_that_failed_asks_for_a_part():
    """One that waits for the next reset asks for that; the end of a state asks for nothing."""
    now = SimpleNamespace(at="2026-11-30T09:00:00Z")
    given = {"id": "x", "kind": "row_remap", "at": now.at, "source": "nvml", "gpu": "0000:43:00"}
    faults = [
        NodeFault(**given, text="row remapping failure: yes"),
        NodeFault(**given, text="row remapping pending: yes"),
        NodeFault(**given, text="row remapping failure: no", cleared=True),
    ]
    assert [repair.remedy for repair in Repairs(load()).of_faults(faults)] == [Remedy.REPLACE, Remedy.RESET]


# --- evidence ---------------------------------------------------------------------------------------------------------


async def test_evidence_is_kept_in_one_bounded_folder(care):
    """What the kernel said, what was told, why it was drained; and what could not be had is said."""
    (care.world.folder / f"kern-{NODE}.log").write_text("NVRM: Xid 94\n" * 100_000)
    arg = k.CareInput(incident=c.IncidentRef(**care.ref.model_dump()), node=NODE, cls="XID_94")
    keep = KeepEvidence(care.world.site).keep
    kept = await care.world.run(keep, k.KeepEvidenceInput(care=care.ref, arg=arg))
    folder = folder_of(care.world.site, care.ref)
    assert (
        {file.name for file in folder.iterdir()}
        == set(kept.files)
        == {"why.json", "faults.json", "slurm.json", "kernel.log"}
    )
    assert (folder / "kernel.log").stat().st_size == 256 << 10
    assert json.loads((folder / "why.json").read_text())["class"] == "XID_94"
    care.world.slurm.fail_next("node", SlurmUnavailableError("timed out"))
    assert "timed out" in (await care.world.run(keep, k.KeepEvidenceInput(care=care.ref, arg=arg))).lost[0]


@pytest.mark.parametrize("name", ["../../etc", "-w", "a b", ""])
def test_a_strange_name_leads_nowhere(care, name):
    """A node's name is part of a path."""
    with pytest.raises(ValueError, match="node name"):
        folder_of(care.world.site, care.ref.model_copy(update={"node": name}))


# --- what the policy says of a node -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ({"mode": "auto"}, "monitor"),
        ({"mode": "auto", "modes": {"return": "auto"}}, "auto"),
        ({"mode": "monitor", "modes": {"return": "auto"}}, "auto"),
        ({"mode": "auto", "modes": {"return": "auto"}, "rules": [("gpu", {"mode": "monitor"})]}, "monitor"),
        (
            {"mode": "auto", "modes": {"return": "auto"}, "rules": [("gpu", {"modes": {"return": "approve"}})]},
            "approve",
        ),
        ({"mode": "auto", "modes": {"return": "auto"}, "rules": [("cpu", {"mode": "off"})]}, "auto"),
        ({"mode": "auto", "rules": [("gpu", {"modes": {"return": "auto"}})]}, "monitor"),
    ],
)
def test_how_far_a_return_may_go(policy, expected):
    """By default not at all, in the strictest of the node's partitions; a rule's mode only lowers it."""
    rules = tuple(
        Rule(match=Match(partition=partition), set=Changes(**changes)) for partition, changes in policy.pop("rules", [])
    )
    site = SitePolicy(**policy, rules=rules)
    assert node_permit(site, "main", ("gpu", "all"), Right.RETURN) == expected
