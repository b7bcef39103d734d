"""One incident on the real server: what the Temporal web UI can list, filter and show."""

from datetime import timedelta

import pytest
from temporalio.client import WorkflowExecutionStatus

from relight.activities import attributes
from relight.activities import contracts as c
from relight.domain.evidence import Evidence, Source
from relight.domain.incidents import Outcome, headline
from relight.domain.plan import Mode
from relight.workers.controller import register_search_attributes

pytestmark = pytest.mark.system


@pytest.fixture
async def incident(dev_server, stage):
    """An incident on the real server, search attributes registered as the worker does."""
    await register_search_attributes(dev_server.client)
    await register_search_attributes(dev_server.client)  # the second worker finds them there
    async with stage(dev_server.client, job_id=4242) as made:
        yield made


@pytest.fixture
async def listed(dev_server, until):
    """Finds workflows by a filter as typed into the web UI; visibility lags a little behind."""

    async def look(query, count=1):
        async def once():
            return [found async for found in dev_server.client.list_workflows(query)]

        return await until(once, lambda found: len(found) == count)

    return look


async def test_a_recovered_incident_is_found_by_its_search_attributes(incident, script, listed):
    """Every column of the list is filled, and the static summary says what happened in one line."""
    script.on(c.PLAN, script.verdict(exclude=("n2",)))
    detection = incident.detection()
    handle = await incident.start(detection)
    assert (await handle.result()).outcome is Outcome.RECOVERED
    (found,) = await listed("RelightJobId = '4242' AND RelightOutcome = 'recovered' AND RelightNodes = 'n2'")
    assert found.id == incident.workflow_id
    assert found.status is WorkflowExecutionStatus.COMPLETED
    said = {pair.key.name: pair.value for pair in found.typed_search_attributes}
    wanted = {
        attributes.CLUSTER.name: "lab4242",
        attributes.JOB_ID.name: "4242",
        attributes.USER.name: "ada",
        attributes.KIND.name: "crash",
        attributes.CAUSE.name: "CUDA_ECC",
        attributes.CATEGORY.name: "GPU",
        attributes.PHASE.name: "closed",
        attributes.MODE.name: "auto",
        attributes.OUTCOME.name: "recovered",
        attributes.NODES.name: ["n2"],
        attributes.NODE_COUNT.name: 1,
    }
    assert wanted.keys() == {key.name for key in attributes.ALL}
    assert {name: said[name] for name in wanted} == wanted
    assert await (await handle.describe()).static_summary() == headline(detection)


async def test_an_incident_that_continues_as_new_starts_with_clean_attributes(incident, script, listed):
    """The next incident of the attempt shows its own kind, and no outcome of the one before."""
    hung = c.Confirmation(outcome=Outcome.NOT_CONFIRMED, reason="no longer running")
    script.on(c.CONFIRM, hung, c.Confirmation(reason="Slurm shows FAILED", user="ada"))
    script.on(c.PLAN, script.verdict(Mode.APPROVE, policy={"approval_expires": timedelta(minutes=5)}))
    hold = script.hold(c.CLOSE)
    handle = await incident.start(incident.detection("hang", "hang"))
    await hold.started.wait()
    await handle.signal("evidence", incident.detection("crash"))
    hold.release.set()
    current = incident.client.get_workflow_handle(incident.workflow_id)
    await incident.waiting(current)
    said = (await current.describe()).typed_search_attributes
    assert (said[attributes.KIND], said[attributes.PHASE]) == ("crash", "waiting for approval")
    assert attributes.OUTCOME not in said
    await current.signal("reject", {"reason": "enough"})
    assert (await handle.result()).outcome is Outcome.REJECTED


async def test_a_detection_in_wide_characters_is_delivered(incident):
    """A summary is limited in bytes, and a log line may be written in any script."""
    wide = (Evidence(source=Source.JOB_LOG, text="界" * 600),)
    assert (await incident.run(incident.detection(evidence=wide))).outcome is Outcome.RECOVERED
