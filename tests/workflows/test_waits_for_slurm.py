"""RecoverJob and a node that is silent: nothing is done before Slurm has decided, and it says what it waits for."""

from datetime import UTC, datetime, timedelta

import pytest

from relight.activities import contracts as c
from relight.domain.evidence import Evidence, Interruption, Source
from relight.domain.incidents import Outcome, Phase
from relight.workflows.story import tell

T0 = datetime(2026, 11, 30, 9, 27, 12, tzinfo=UTC)
WAITS = "n3 is silent; waiting for Slurm to declare it down (up to 300 s)"


@pytest.fixture
def silent(incident):
    """n3 is silent, and Slurm may take 300 s."""
    seen = Evidence(source=Source.AGENT, text="n3 is silent: ...", signature="NODE_SILENT", node="n3", at=T0)
    limit = timedelta(seconds=300)
    return incident.detection(kind=Interruption.NODE_LOST, evidence=(seen,), slurm_decides_within=limit)


async def test_it_says_what_it_waits_for(incident, script, silent, until):
    """In its page, its steps and the step under way, while confirming; then it goes on as ever."""
    hold = script.hold(c.CONFIRM)
    handle = await incident.start(silent)
    await hold.started.wait()
    status = await until(lambda: incident.status(handle), lambda status: len(status.steps) > 1)
    assert (status.phase, status.steps[-1].name, status.steps[-1].text) == (Phase.CONFIRMING, "waiting", WAITS)
    assert WAITS in tell(status)
    assert script.mutations == []
    hold.release.set()
    assert (await handle.result()).outcome is Outcome.RECOVERED
    assert incident.steps()["waiting"] == WAITS


async def test_slurms_later_word_is_no_second_finding(incident, script, silent):
    """The same detection again changes nothing; the end of the attempt is evidence beside it."""
    hold = script.hold(c.CONFIRM)
    handle = await incident.start(silent)
    await hold.started.wait()
    again = incident.detection(kind=Interruption.NODE_LOST)
    assert again.id == silent.id
    await handle.signal("evidence", again)
    await handle.signal("evidence", incident.detection("ended", Interruption.NODE_LOST))
    hold.release.set()
    assert (await handle.result()).outcome is Outcome.RECOVERED
    (asked,) = script.args(c.DIAGNOSE)
    assert [e.text for e in asked.evidence] == ["ended: JobState=FAILED"]
    assert len(script.args(c.CONFIRM)) == 1
