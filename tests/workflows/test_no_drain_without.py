"""Through the workflows: no node is drained without evidence, the guard's leave and an approval where it takes one.

`tests/activities/test_no_drain_without.py` has the same of the activities, over far more cases.
"""

import asyncio
import random
from datetime import timedelta
from itertools import count
from typing import NamedTuple

import pytest
from temporalio.exceptions import ApplicationError

from relight.activities import contracts as c
from relight.domain.evidence import TRUST, Evidence, Source, Trust
from relight.domain.guard_standing import Pause, Standing
from relight.domain.incidents import Phase
from relight.domain.plan import Mode
from relight.domain.rights import Right
from relight.domain.slurm import NodeFlag, NodeRecord, NodeState
from relight.workers.controller import register_search_attributes

from .conftest import T0, eventually, signed_by, start_guard

NODE = "n2"
PAUSE = Pause(by="ada", reason="power", since=T0, until=T0 + timedelta(days=3650))
LOOKS = {
    "well": {},
    "unknown": {"unknown": "slurmctld does not answer"},
    "killed": {"standing": Standing(killed="KILL is there")},
    "paused": {"standing": Standing(pauses=(PAUSE,))},
    "unreadable": {"standing": Standing(unknown="cannot be read")},
    "no topology": {"domains": None},
    "taken": {"nodes": (NodeRecord(name=NODE, state=NodeState.IDLE, flags=frozenset({NodeFlag.DRAIN})),)},
    "nothing": {"nodes": ()},
}
"""What the guard sees."""
FAILS = ApplicationError("no", type="RefusedError")


class Case(NamedTuple):
    """All of one input."""

    mode: Mode = Mode.AUTO
    needed: int = 1
    words: tuple[tuple[str, bool, str], ...] = ()
    """Who, yes or no, and what is wrong with it."""
    may: c.MayAct = c.MayAct()
    source: Source = Source.KERNEL_LOG
    witnessed: str = NODE
    look: str = "well"
    guarded: bool = True
    recorded: bool = True
    """Whether the ledger takes the guard's answer."""


WRONG = (
    *({"mode": mode} for mode in (Mode.MONITOR, Mode.APPROVE)),
    *({"may": may} for may in (c.MayAct(stop="paused"), c.MayAct(unknown="cannot be read"))),
    *({"source": source} for source in (Source.JOB_LOG, Source.EXPORTER, Source.HISTORY, Source.ACTIVITY)),
    *({"witnessed": node} for node in ("n1", "")),
    *({"look": look} for look in LOOKS),
    {"guarded": False},
    {"recorded": False},
    {"needed": 2},
    *({"words": ((who, True, flaw),)} for who, flaw in (("mallory", ""), ("bare", ""), ("bob", "digest"))),
    *({"words": (("ada", True, flaw),)} for flaw in ("incident", "run_id")),
    *({"words": ((who, False, ""), ("ada", True, ""), ("bob", True, ""))} for who in ("bob", "bare", "mallory")),
    {"words": (("ada", True, ""), ("ada", True, ""))},
)
GOOD = (
    Case(),
    Case(mode=Mode.APPROVE, words=(("ada", True, ""),)),
    Case(mode=Mode.APPROVE, needed=2, words=(("ada", True, ""), ("bob", True, ""))),
)
"""Each leads to a drain."""


def some(number):
    """The cases that lead to a drain, with each thing by itself made wrong, and some with two at once."""
    drawn = random.Random(number)  # noqa: S311 - the same each time
    alone = [GOOD[index % len(GOOD)]._replace(**wrong) for index, wrong in enumerate(WRONG)]
    return [*alone, *(drawn.choice(GOOD)._replace(**(drawn.choice(WRONG) | drawn.choice(WRONG))) for _ in range(8))]


def approved(given_):
    """Whether enough different people said yes by words that count, before anybody's no."""
    people = set()
    for who, yes, flaw in given_.words:
        genuine = who in {"ada", "bob"} and flaw not in {"incident", "run_id"}
        if not yes and (who == "bare" or (genuine and not flaw)):
            return False
        if yes and genuine and not flaw:
            people.add(who)
        if len(people) >= given_.needed:
            return True
    return False


AT_ONCE = 6
EXPIRES = timedelta(seconds=5)
BEFORE = {Phase.CONFIRMING, Phase.DIAGNOSING, Phase.PLANNING}


async def play(incident, given_, diagnosis):
    """One incident from its detection to its end; what was asked of the activities."""
    script = incident.script
    seen = Evidence(source=given_.source, text="Xid 79", node=given_.witnessed or None, signature="XID_79")
    script.on(c.DIAGNOSE, diagnosis(nodes=(NODE,), evidence=(seen,)))
    policy = {"approvers": {Right.DRAIN: given_.needed}, "trust_temporal_ui": True, "approval_expires": EXPIRES}
    script.on(c.PLAN, script.verdict(given_.mode, policy=policy, exclude=(NODE,), drain=(NODE,)))
    script.on(c.MAY_ACT, given_.may)
    script.on(c.LOOK, script.look(**LOOKS[given_.look]))
    if not given_.recorded:
        script.on(c.RECORD_LEAVE, FAILS)
    guard = await start_guard(incident) if given_.guarded else None
    handle = await incident.start()
    for word in given_.words if given_.mode is Mode.APPROVE else ():
        status = await eventually(lambda: incident.status(handle), lambda status: status.phase not in BEFORE)
        if status.phase is not Phase.WAITING:
            break
        await say(handle, status.approval.request, *word)
    await handle.result()
    if guard:
        await guard.terminate()
    return script


async def say(handle, request, who, yes, flaw):
    """One person's word on what is asked."""
    if who == "bare":
        await handle.signal("approve" if yes else "reject", {"digest": request.digest, "reason": "x"})
    else:
        changes = {flaw: "f" * 64} if flaw else {}
        await handle.execute_update("decide", signed_by(who, request, approved=yes, **changes))


def check(given_, script):
    """All that a drain takes; what was drained, and how."""
    drains, asked = script.args(c.DRAIN), given_.mode is Mode.APPROVE
    for drain in drains:
        assert drain.node == given_.witnessed == NODE
        assert TRUST[given_.source] is Trust.PLATFORM
        assert given_.mode is not Mode.MONITOR
        assert not given_.may.stop
        assert asked or not given_.may.unknown
        assert (given_.guarded, given_.look, given_.recorded) == (True, "well", True)
        assert drain.leave.granted
        assert (drain.approved_until is not None) is asked
        assert not asked or approved(given_)
    return ("asked" if asked else "unasked") if drains else "not"


@pytest.fixture
async def play_all(dev_server, stage, make_diagnosis):
    """Plays cases on the real server, a few at a time, each with a cluster and a guard of its own."""
    await register_search_attributes(dev_server.client)
    numbers, room = count(5000), asyncio.Semaphore(AT_ONCE)

    async def one(given_):
        async with room, stage(dev_server.client, job_id=next(numbers)) as incident:
            return check(given_, await play(incident, given_, make_diagnosis))

    return lambda given_: asyncio.gather(*map(one, given_))


async def test_what_has_all_that_it_takes_is_drained(play_all):
    """The next test would hold where nothing ever is."""
    assert await play_all(GOOD) == ["unasked", "asked", "asked"]


async def test_no_drain_without_evidence_leave_and_approval(play_all):
    """Whatever is planned, said, seen and answered."""
    found = await play_all(some(1))
    assert "not" in found
