"""What the Temporal web UI shows of an incident: complete, within the caps, and safe to render."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from temporalio.api.sdk.v1 import WorkflowMetadata

from relight.activities import attributes
from relight.activities import contracts as c
from relight.domain.attempts import AttemptKey
from relight.domain.evidence import Detection, Evidence, Interruption, Source
from relight.domain.incidents import Outcome, Phase, StepTime
from relight.domain.plan import Mode, Restart
from relight.workflows.options import MAX_DETAILS, MAX_NODES_IN_ATTRIBUTE, MAX_SUMMARY
from relight.workflows.story import Status, tell

T0 = datetime(2026, 11, 30, 9, 27, 12, tzinfo=UTC)
ATTEMPT = AttemptKey(cluster="lab", job_id=7, submit_time=T0)
NODES = tuple(f"gpu-b200-rack{n // 32:03}-node{n:04}" for n in range(4096))
TRUSTED = {"trust_temporal_ui": True}
HOSTILE = (
    "x`y` <script>alert(1)</script> [click](http://evil) ![i](http://evil/p.png) **bold** | a\n# head\r\x1b[31m\u202e"
)


def detection(text="JobState=FAILED"):
    evidence = (Evidence(source=Source.JOB_LOG, text=text),)
    return Detection(id="d1", attempt=ATTEMPT, kind=Interruption.CRASH, detected_at=T0, evidence=evidence)


async def details(handle):
    """The current details, by the query that the web UI sends."""
    raw = await handle.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
    return raw.current_details


# --- what is told ---------------------------------------------------------------------------------------------------


async def test_the_page_of_a_waiting_incident_tells_all_a_person_needs(incident, script):
    """Who, why, plan, digest, until when, and how to answer."""
    script.on(c.PLAN, script.verdict(Mode.APPROVE, exclude=("n2",), drain=("n2",), policy=TRUSTED))
    handle = await incident.start()
    status = await incident.waiting(handle)
    page = await details(handle)
    assert page == tell(status)
    digest = status.verdict.plan.digest[:12]
    for part in (
        f"### Incident {status.incident}: **waiting for approval**",
        f"**Who:** job **{incident.attempt.job_id}** (train, user ada) on {incident.attempt.cluster}, crash",
        "**Why:** an uncorrectable memory error of a GPU (CUDA_ECC, GPU, 90%)",
        "**Behind it:** nodes n2; ranks 3",
        "- `NVRM: Xid 48: double bit ECC`",
        f"**Plan:** requeue job {incident.attempt.job_id} excluding n2; drain n2 — ECC error",
        f"**Mode:** approve (cluster policy says approve) · plan digest `{digest}`",
        f"**Waiting for people until {status.decide_until:%Y-%m-%d %H:%M:%S} UTC: 0 of 1 approval**; without an answer",
        f"- `relight approve {status.incident}` or `relight reject {status.incident} --reason ...`",
        "- asked: restart, drain (middle); may approve: ada, bob, carol",
        "| 0.0 s | detected | crash of job",
    ):
        assert part in page
    await handle.signal("reject", {"reason": "not now"})
    await handle.result()
    page = await details(handle)
    assert "**rejected** — not now" in page
    assert "Waiting for people" not in page


async def test_the_page_offers_the_signal_where_it_would_count(incident, script):
    """For a restart, on a site that trusts it; with the digest to copy."""
    script.on(c.PLAN, script.verdict(Mode.APPROVE, policy=TRUSTED))
    handle = await incident.start()
    status = await incident.waiting(handle)
    digest = status.verdict.plan.digest[:12]
    assert f'- or send the signal `approve` here: `{{"digest": "{digest}", "reason": "..."}}`' in tell(status)
    await handle.signal("reject", {})
    await handle.result()


async def test_the_page_says_until_when_slurm_can_requeue_and_what_remains(environment, incident, script):
    """A command that a person can copy."""
    deadline = await environment.get_current_time() + timedelta(minutes=4)
    fresh = "relight show i1 --script > job.sh && sbatch --chdir='/home/a [b]' job.sh"
    script.on(c.PLAN, script.verdict(Mode.APPROVE, requeue_until=deadline, fresh=fresh))
    handle = await incident.start()
    page = tell(await incident.waiting(handle))
    told = f"{deadline:%Y-%m-%d %H:%M:%S} UTC; after that: `{fresh}`"
    assert f"- Slurm can requeue it until {told}" in page
    await handle.signal("reject", {})
    await handle.result()


async def test_a_site_that_does_not_trust_signals_does_not_offer_them(incident, script):
    """No one is sent down a way that does not count."""
    script.on(c.PLAN, script.verdict(Mode.APPROVE))
    handle = await incident.start()
    page = tell(await incident.waiting(handle))
    assert "relight approve" in page
    assert "send the signal" not in page
    await handle.signal("reject", {})
    await handle.result()


async def test_the_page_of_a_plan_that_became_moot_says_by_what(incident, script):
    """What came, when, and that the next incident goes on; nobody is asked any more."""
    script.on(c.PLAN, script.verdict(Mode.APPROVE), script.verdict())
    hold = script.hold(c.CLOSE)
    script.on(c.CLOSE, hold, c.Nothing())
    handle = await incident.start(incident.detection("hang", Interruption.HANG))
    status = await incident.waiting(handle)
    await handle.signal("evidence", incident.detection("crash"))
    await hold.started.wait()
    page = await details(handle)
    hold.release.set()
    await handle.result()
    told = "the attempt has crashed meanwhile; see the attempt's next incident"
    assert f"### Incident {status.incident}: **superseded** — {told}" in page
    assert f"| overtaken | crash of job {incident.attempt.job_id}: crash: JobState=FAILED |" in page
    assert f"| superseded | {told} |" in page
    assert "Waiting for people" not in page


async def test_the_messages_explain_themselves(incident, script):
    """The web UI offers the signals and the update with their descriptions."""
    hold = script.hold(c.CONFIRM)
    handle = await incident.start()
    await hold.started.wait()
    raw = await handle.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
    described = {d.name: d.description for d in raw.definition.signal_definitions}
    assert described.keys() == {"evidence", "approve", "reject", "cancel", "superseded", "leave"}
    assert "digest" in described["approve"]
    assert [d.name for d in raw.definition.update_definitions] == ["decide"]
    hold.release.set()
    await handle.result()


# --- text from logs -------------------------------------------------------------------------------------------------


def lines_made(status):
    """The page, and how many lines it has."""
    page = tell(status)
    return page, page.count("\n")


def test_text_from_logs_is_neutralised(make_diagnosis):
    """No markup, no link, no image, no table cell, no line and no terminal code comes from what a job can print."""
    evil = make_diagnosis(
        summary=HOSTILE,
        implicated={"ranks": (1,), "nodes": (HOSTILE,), "gpus": (HOSTILE,)},
        evidence=(Evidence(source=Source.JOB_LOG, text=HOSTILE, file=f"/home/{HOSTILE}.out", line=1),),
    )
    harmless = make_diagnosis(
        summary="x",
        implicated={"ranks": (1,), "nodes": ("x",), "gpus": ("x",)},
        evidence=(Evidence(source=Source.JOB_LOG, text="x", file="/home/x.out", line=1),),
    )

    def status(text, diagnosis):
        return Status(
            incident="i1",
            workflow_id="recover/lab/7",
            phase=Phase.CLOSED,
            detection=detection(text),
            confirmation=c.Confirmation(reason="r", job_name=text, user=text),
            diagnosis=diagnosis,
            outcome=Outcome.FAILED,
            reason=text,
            steps=(StepTime(name="diagnosed", at=T0, text=text),),
        )

    page, count = lines_made(status(HOSTILE, evil))
    plain_page, plain_count = lines_made(status("x", harmless))
    assert count == plain_count
    for char in "<>[]`*|":
        assert page.count(char) == plain_page.count(char), char
    assert all(char.isprintable() for line in page.split("\n") for char in line)


async def test_hostile_text_passes_through_an_incident(incident, script, make_diagnosis):
    """The page of a real run holds it as one harmless line, and the incident ends as it would have."""
    script.on(c.DIAGNOSE, make_diagnosis(summary=HOSTILE))
    handle = await incident.start(incident.detection(evidence=(Evidence(source=Source.JOB_LOG, text=HOSTILE),)))
    assert (await handle.result()).outcome is Outcome.RECOVERED
    page = await details(handle)
    assert "<script>" not in page
    assert "](http" not in page
    assert "\n# head" not in page


# --- caps -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def everybody(script, make_diagnosis):
    """A diagnosis that implicates 4,096 nodes, and a plan that names them all, in wide characters."""
    wide = tuple(Evidence(source=Source.KERNEL_LOG, text="界" * 600, node=node) for node in NODES[:16])
    script.on(
        c.DIAGNOSE,
        make_diagnosis(
            nodes=NODES,
            implicated={"ranks": tuple(range(4096)), "nodes": NODES, "gpus": NODES},
            summary="界" * 5000,
            evidence=wide,
        ),
    )
    return script.verdict(Mode.APPROVE, exclude=NODES, reason=f"{','.join(NODES)} not excluded", policy=TRUSTED)


async def test_an_incident_of_4096_nodes_stays_within_every_cap(incident, script, everybody):
    """Search attributes, summaries and details are cut; what a person waits with is not."""
    script.on(c.PLAN, everybody)
    handle = await incident.start()
    status = await incident.waiting(handle)
    page = await details(handle)
    assert len(page.encode()) <= MAX_DETAILS
    assert f"relight approve {status.incident}" in page
    assert status.verdict.plan.digest[:12] in page
    await handle.signal("approve", {"digest": status.verdict.plan.digest[:12], "reason": "r" * 10_000})
    result = await handle.result()
    assert result.outcome is Outcome.RECOVERED
    found = (await handle.describe()).typed_search_attributes
    assert found[attributes.NODES] == list(NODES[:MAX_NODES_IN_ATTRIBUTE])
    assert found[attributes.NODE_COUNT] == 4096
    history = await handle.fetch_history()
    summaries = [e.user_metadata.summary.data for e in history.events if e.HasField("user_metadata")]
    assert len(summaries) >= 10
    assert all(len(json.loads(s).encode()) <= 2 * MAX_SUMMARY for s in summaries)
    assert all(len(step.text) <= 300 for step in script.args(c.CLOSE)[0].steps)


@pytest.mark.parametrize("outcome", [Outcome.OBSERVED, Outcome.STOPPED])
async def test_the_reason_of_an_outcome_is_cut(incident, script, everybody, outcome):
    """A plan for 4,096 nodes is a reason of 100 KB; the outcome's is a sentence."""
    observed = everybody.model_copy(update={"mode": Mode.MONITOR})
    long = everybody.plan.reason
    stopped = script.verdict(restart=Restart.NONE, outcome=Outcome.STOPPED, reason=long)
    script.on(c.PLAN, observed if outcome is Outcome.OBSERVED else stopped)
    result = await incident.run()
    assert result.outcome is outcome
    assert len(result.reason) <= 500 < len(long)
    assert script.args(c.CLOSE)[0].reason == result.reason


def test_details_are_cut_by_bytes_between_characters(make_diagnosis):
    """Temporal counts bytes; a page of wide characters is cut without breaking one."""
    steps = tuple(
        StepTime(name="decision not counted", at=T0 + timedelta(seconds=n), text="界" * 300) for n in range(99)
    )
    page = tell(Status(incident="i1", workflow_id="w", phase=Phase.WAITING, steps=steps))
    assert MAX_DETAILS - 3 <= len(page.encode()) <= MAX_DETAILS
    assert "\ufffd" not in page
