"""More paths of which a history is kept: the care of a node, the breaker, what slurmctld forgot, a node that hangs.

Each plays one on the real server with scripted activities, and returns the handle of the workflow that it is about.
"""

from datetime import UTC, datetime, timedelta

from relight.activities import care_contracts as k
from relight.activities import contracts as c
from relight.domain.breaker import Report, Sign
from relight.domain.care import CareOutcome, CarePhase, Hold, Next
from relight.domain.diagnosis import Category
from relight.domain.incidents import Outcome
from relight.domain.rights import Right
from relight.domain.slurm import NodeFlag, NodeRecord, NodeState

from .conftest import T0, eventually, signed_by, start_guard, witness
from .test_care_for_node import ASKED, NODE, WELL, Quarantine, verdict


async def care_returned(incident, _script):
    """Drained, checked, well, and returned unasked."""
    return await _cared_for(_node(incident), CareOutcome.RETURNED)


async def care_overridden(incident, _script):
    """A person undrains the node while people are asked."""
    node = _node(incident)
    node.judges(ASKED)
    await node.start()
    await node.until(CarePhase.WAITING)
    node.change(Hold.FREED, by="root")
    return await _end(node, CareOutcome.OVERRIDDEN)


async def care_released(incident, _script):
    """Kept, because it is not well; a person keeps it and another releases it: checked anew, and returned."""
    node = _node(incident)
    node.judges(verdict(Next.HAND_OVER), verdict(Next.KEEP, reason="kept"), WELL)
    await node.start()
    await node.until(CarePhase.KEPT)
    await node.handle.execute_update("keep", {"by": "bob", "reason": "fan is noisy"})
    kept = await eventually(node.status, lambda status: status.judged.verdict.reason == "kept")
    said = signed_by("ada", kept.release, reason="GPU 3 replaced", at=datetime.now(UTC))
    await node.handle.execute_update("release", {"signed": said.model_dump(mode="json")})
    return await _end(node, CareOutcome.RETURNED)


async def care_approved(incident, _script):
    """A return that people are asked about; one word does not count, one does."""
    node = _node(incident)
    node.judges(ASKED)
    await node.start()
    request = (await node.until(CarePhase.WAITING)).approval.request
    for name in ("mallory", "ada"):
        await _decide(node, name, request)
    return await _end(node, CareOutcome.RETURNED)


async def care_down(incident, script):
    """A node that hangs: two people approve, the guard gives leave, it is set down, checked and returned."""
    node = _node(incident)
    limits = script._answers[k.READ_LIMITS.name][0]
    node.limits(needed={**limits.needed, Right.DOWN: 2})
    script.on(c.LOOK, script.look(NodeRecord(name=NODE, state=NodeState.IDLE, flags=frozenset({NodeFlag.COMPLETING}))))
    guard = await start_guard(incident)
    await node.start(completing_since=T0)
    request = (await node.until(CarePhase.WAITING)).approval.request
    for name in ("ada", "bob"):
        await _decide(node, name, request)
    await _end(node, CareOutcome.RETURNED)
    assert node.acts == [k.DOWN_NODE.name, k.RETURN_NODE.name]
    await guard.terminate()
    return node.handle


async def care_cleared(incident, _script):
    """A node that hangs is through before Slurm's own limits are over."""
    node = _node(incident)
    await node.start(completing_since=datetime.now(UTC))
    await node.until(CarePhase.COMPLETING)
    node.change(Hold.FREED)
    return await _end(node, CareOutcome.CLEARED)


async def forgotten(incident, script):
    """slurmctld forgets the requeue once before the old attempt has ended, and once more while the next is awaited."""
    (ended,), (running,) = script._answers[c.AWAIT_ENDED.name], script._answers[c.AWAIT_RUNNING.name]
    lost = {"forgotten": True, "text": "slurmctld has forgotten the requeue"}
    script.on(c.AWAIT_ENDED, ended.model_copy(update=lost), ended)
    script.on(c.AWAIT_RUNNING, running.model_copy(update={"attempt": None, **lost}), running)
    handle = await incident.start()
    assert (await handle.result()).outcome is Outcome.RECOVERED
    assert len(script.args(c.REQUEUE)) == 3
    return handle


async def stuck(incident, script):
    """The old attempt hangs in COMPLETING: its node is taken into care, and the wait goes on."""
    (ended,) = script._answers[c.AWAIT_ENDED.name]
    script.on(
        c.AWAIT_ENDED, ended.model_copy(update={"stuck_nodes": (NODE,), "since": T0, "text": "still there"}), ended
    )
    script.on(k.AWAIT_CHANGE, k.Held(hold=Hold.FREED, text="it is through", at=T0))
    handle = await incident.start()
    assert (await handle.result()).outcome is Outcome.RECOVERED
    await incident.client.get_workflow_handle(f"node/{incident.attempt.cluster}/{NODE}").result()
    return handle


async def guard_breaker(incident, _script):
    """Three nodes at once open the breaker; a pause, its end, and the reset by a person."""
    guard = await start_guard(incident)
    for number in range(3):
        told = {"incident": f"i{number}", "job": f"j{number}", "nodes": (f"n{number}",), "began": datetime.now(UTC)}
        await guard.signal("report", Report(sign=Sign.INCIDENT, category=Category.NODE, **told))

    async def standing():
        return (await guard.query("state", result_type=c.GuardState)).standing

    await eventually(standing, lambda found: found.trip is not None)
    pause = {"by": "ada", "reason": "power work", "lasts": timedelta(hours=1)}
    await guard.execute_update("pause", c.PauseInput(**pause))
    await guard.execute_update("resume", {"by": "ada"})
    await guard.execute_update("reset_breaker", {"by": "ada", "reason": "switch replaced"})
    await eventually(standing, lambda found: found.trip is None and not found.pauses)
    await guard.terminate()
    return guard


MORE = (
    care_returned,
    care_overridden,
    care_released,
    care_approved,
    care_down,
    care_cleared,
    forgotten,
    stuck,
    guard_breaker,
)


def _node(incident):
    return Quarantine(incident, witness)


async def _decide(node, name, request):
    said = signed_by(name, request, at=datetime.now(UTC))
    await node.handle.execute_update("decide", said.model_dump(mode="json"))


async def _cared_for(node, outcome):
    await node.start()
    return await _end(node, outcome)


async def _end(node, outcome):
    """The handle, once it has ended so and nothing of it is left to run."""
    assert (await node.handle.result()).outcome is outcome
    node.changed.set()
    return node.handle
