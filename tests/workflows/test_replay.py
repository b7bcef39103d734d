"""Recorded histories replayed: what runs today must still be understood by the code of tomorrow.

Record anew, on the real server, after a change that nobody runs yet:

    pytest tests/workflows/test_replay.py --record
"""

import base64
import getpass
import json
import os
import re
import socket
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio.client import WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer

from relight.activities import contracts as c
from relight.domain.evidence import Interruption
from relight.domain.incidents import Outcome
from relight.domain.plan import Mode, Restart
from relight.workers.controller import WORKFLOWS, register_search_attributes, sandbox
from relight.workflows.watch_cluster import WatchCluster

from .conftest import signed_by, start_guard
from .history_paths import MORE

HISTORIES = Path(__file__).parent / "histories"
HELP = """
{name}: workflow code no longer makes the commands that this history holds. An incident that is open when this is
deployed would be stuck. Put the change behind `workflow.patched("...")`; or, if no incident, guard or watcher runs
anywhere with the old code, record anew: pytest tests/workflows/test_replay.py --record

{error}"""


# --- the paths --------------------------------------------------------------------------------------------------------


async def recovered(incident, script):
    """A crash, the bad node excluded and drained, training past the failed step."""
    script.on(c.PLAN, script.verdict(exclude=("n2",), drain=("n2",)))
    guard = await start_guard(incident)
    handle = await incident.start()
    assert (await handle.result()).outcome is Outcome.RECOVERED
    await guard.terminate()
    return handle


async def adopted(incident, script):
    """Slurm's own requeue taken over; one exclusion taken back."""
    script.on(c.PLAN, script.verdict(restart=Restart.ADOPT, exclude=("n2",)))
    running = script._answers[c.AWAIT_RUNNING.name][0]
    script.on(c.AWAIT_RUNNING, running.model_copy(update={"attempt": None, "too_few_nodes": True}), running)
    return await ended(incident, Outcome.ADOPTED)


async def stopped(incident, script):
    """A hung job that a retry would not help, cancelled."""
    script.on(c.PLAN, script.verdict(restart=Restart.NONE, cancel=True))
    return await ended(incident, Outcome.STOPPED)


async def observed(incident, script):
    """Mode `monitor`."""
    script.on(c.PLAN, script.verdict(Mode.MONITOR))
    return await ended(incident, Outcome.OBSERVED)


async def approved(incident, script):
    """One bare signal that does not count, then a signed decision, and it again: a replay."""
    script.on(c.PLAN, script.verdict(Mode.APPROVE))
    handle = await incident.start()
    status = await incident.waiting(handle)
    await handle.signal("approve", {"digest": status.verdict.plan.digest, "reason": "go on"})
    said = signed_by("ada", status.approval.request)
    assert await handle.execute_update("decide", said) == "counted: approved"
    assert (await handle.execute_update("decide", said)).startswith("not counted")
    assert (await handle.result()).outcome is Outcome.RECOVERED
    return handle


async def expired(incident, script):
    """Nobody decided."""
    script.on(c.PLAN, script.verdict(Mode.APPROVE, policy={"approval_expires": timedelta(seconds=1)}))
    return await ended(incident, Outcome.EXPIRED)


async def cancelled(incident, script):
    """The workflow cancelled by a person while it waits for progress."""
    hold = script.hold(c.AWAIT_PROGRESS)
    handle = await incident.start()
    await hold.started.wait()
    await handle.cancel()
    assert (await handle.result()).outcome is Outcome.OVERRIDDEN
    return handle


async def carried_over(incident, script):
    """A hang not confirmed, with the crash that ended the attempt left for the next run."""
    script.on(c.CONFIRM, c.Confirmation(outcome=Outcome.NOT_CONFIRMED, reason="no longer running"))
    hold = script.hold(c.CLOSE)
    handle = await incident.start(incident.detection("hang", Interruption.HANG))
    await hold.started.wait()
    await handle.signal("evidence", incident.detection("crash"))
    hold.release.set()
    await handle.result()
    return incident.client.get_workflow_handle(handle.id, run_id=handle.first_execution_run_id)


async def released(incident, script):
    """A job that Slurm held after a failed launch, adopted and released."""
    script.on(c.PLAN, script.verdict(restart=Restart.ADOPT, exclude=("n2",), release=True))
    return await ended(incident, Outcome.ADOPTED)


async def overtaken(incident, script):
    """The attempt crashes while the plan for its hang waits: superseded, with both left for the next run."""
    script.on(c.PLAN, script.verdict(Mode.APPROVE))
    handle = await incident.start(incident.detection("hang", Interruption.HANG))
    await incident.waiting(handle)
    script.on(c.PLAN, script.verdict())
    await handle.signal("evidence", incident.detection("crash"))
    assert (await handle.result()).outcome is Outcome.RECOVERED
    return incident.client.get_workflow_handle(handle.id, run_id=handle.first_execution_run_id)


async def guard_grant(incident, script):
    """A guard that has given one leave."""
    script.on(c.PLAN, script.verdict(drain=("n2",)))
    guard = await start_guard(incident)
    await incident.run()
    assert len((await guard.query("state", result_type=c.GuardState)).grants) == 1
    await guard.terminate()
    return guard


async def watch_continued_as_new(incident, script):
    """A run of the watchers that has come to its end."""
    hold = script.hold(c.WATCH_JOBS)
    script.on(c.WATCH_JOBS, c.Nothing(), hold)
    handle = await incident.client.start_workflow(
        WatchCluster.run,
        c.WatchInput(cluster=incident.attempt.cluster),
        id=c.watch_id(incident.attempt.cluster),
        task_queue=incident.task_queue,
    )
    await hold.started.wait()
    await incident.client.get_workflow_handle(handle.id).terminate()
    return incident.client.get_workflow_handle(handle.id, run_id=handle.first_execution_run_id)


async def ended(incident, outcome):
    """The handle of an incident that ended so."""
    handle = await incident.start()
    assert (await handle.result()).outcome is outcome
    return handle


PATHS = (
    recovered,
    adopted,
    stopped,
    observed,
    approved,
    expired,
    cancelled,
    carried_over,
    guard_grant,
    watch_continued_as_new,
    released,
    overtaken,
    *MORE,
)
NAMES = [path.__name__ for path in PATHS]
BEFORE = ("waited_on", "one_decision", "recovered_before", "adopted_before", "guard_grant_before", "stopped_before")
"""Recorded by code that is gone, and never to be recorded anew: what is open when its patch is deployed.

`waited_on`: a crash told to a hang's incident waits until nobody has decided on the hang (patch `overtaken`).
`one_decision`: a signature checked by an activity, and one decision enough for anything (patch `safe-hands`).
`..._before`: the same paths before the patches `safe-hands` and `whole-guard`.
"""


# --- recording --------------------------------------------------------------------------------------------------------


def scrubbed(value):
    """The history without what names a machine: who worked on it, sticky queues, code hashes, paths in traces."""
    if isinstance(value, list):
        return [scrubbed(v) for v in value]
    if not isinstance(value, dict):
        return value
    if value.get("kind") == "TASK_QUEUE_KIND_STICKY":
        return value | {"name": "sticky"}
    told = {"identity": "worker", "stackTrace": "", "binaryChecksum": "", "buildId": "", "requestId": "request"}
    return {k: told[k] if k in told and isinstance(v, str) else scrubbed(v) for k, v in value.items()}


@pytest.fixture(scope="session")
def recording(request):
    """Only where it was asked for."""
    if not request.config.getoption("--record", default=False):
        pytest.skip("only with --record")


@pytest.mark.parametrize("path", PATHS, ids=NAMES)
async def test_record(path, recording, dev_server, stage):
    """With `--record` the history is recorded on the real server, and the old file replaced."""
    await register_search_attributes(dev_server.client)
    async with stage(dev_server.client, job_id=100 + NAMES.index(path.__name__)) as incident:
        handle = await path(incident, incident.script)
        history = await handle.fetch_history()
    HISTORIES.mkdir(exist_ok=True)
    text = json.dumps(scrubbed(history.to_json_dict()), indent=1, sort_keys=True)
    (HISTORIES / f"{path.__name__}.json").write_text(text + "\n")


# --- replaying --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def replayer():
    """Replays as the worker would run it: same workflows, same sandbox, same data converter."""
    return Replayer(workflows=WORKFLOWS, workflow_runner=sandbox(), data_converter=pydantic_data_converter)


@pytest.mark.parametrize("name", [*NAMES, *BEFORE])
async def test_replays(name, replayer):
    """Today's code makes the commands that the history holds."""
    history = WorkflowHistory.from_json(f"recorded/{name}", (HISTORIES / f"{name}.json").read_text())
    result = await replayer.replay_workflow(history, raise_on_replay_failure=False)
    if result.replay_failure:
        pytest.fail(HELP.format(name=name, error=result.replay_failure))


async def test_a_change_of_commands_is_noticed(replayer):
    """The check can fail: a history from which an activity's name was changed is refused."""
    text = (HISTORIES / "recovered.json").read_text().replace("keep_outputs", "forget_outputs")
    result = await replayer.replay_workflow(
        WorkflowHistory.from_json("recorded/changed", text), raise_on_replay_failure=False
    )
    assert "Nondeterminism" in repr(result.replay_failure)


def test_every_history_has_its_path():
    """A file left over from a path that is gone would say nothing."""
    assert sorted(file.stem for file in HISTORIES.glob("*.json")) == sorted([*NAMES, *BEFORE])


@pytest.mark.parametrize("name", [*NAMES, *BEFORE])
def test_no_machine_is_named(name):
    """Neither host, user, process nor path stands in a file, not even inside a payload."""
    text = (HISTORIES / f"{name}.json").read_text()
    payloads = [base64.b64decode(data).decode() for data in re.findall(r'"data": "([A-Za-z0-9+/=]+)"', text)]
    everything = "\n".join([text, *payloads])
    assert re.findall(r"\d+@\w+", everything) == []
    names = {socket.gethostname(), os.environ.get("HOSTNAME", ""), str(Path.cwd()), str(Path.home()), ".venv"}
    for name_of_ours in names - {"", "/", "localhost"}:
        assert not re.search(rf"\b{re.escape(name_of_ours)}\b", everything), name_of_ours
    assert f"/home/{getpass.getuser()}" not in everything
