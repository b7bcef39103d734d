"""A ledger as after a bad night on a GPU cluster, written by the ledger's own API: for looking at the console.

Everything in it is made up; no Slurm and no Temporal stand behind it, so nothing in it can be decided.
"""

import asyncio
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from relight.clients.ledger import Ledger
from relight.domain.attempts import Attempt, AttemptKey, AttemptState, Progress, progress_cursor
from relight.domain.base import short_hash
from relight.domain.detectors import EXPECTED, Sight, WorkerReport, WorkerReports, sights_cursor
from relight.domain.diagnosis import Diagnosis
from relight.domain.evidence import Interruption
from relight.domain.guard import Grant, PartitionCount
from relight.domain.guard_standing import Standing, standing_cursor
from relight.domain.incidents import Incident, StepTime
from relight.domain.ledger import Change, Entry, RowKind
from relight.domain.plan import Plan
from relight.domain.policy import Policy, Verdict
from relight.domain.rights import APPROVERS, Approver
from relight.domain.slurm import JobRecord, JobState
from relight.lab import console_scenes as scenes
from relight.lab.console_rows import Rows
from relight.lab.console_scenes import Scene

CLUSTER = "main"
_BATCH = 500
STEP_S = 2.31
START_UP = timedelta(seconds=140)


class Written(NamedTuple):
    """What one scene comes to."""

    change: Change
    incident: Incident


def seed(
    ledger: Ledger, now: datetime, cluster: str = CLUSTER, *, many: int = 0, approvers: tuple[Approver, ...] = ()
) -> tuple[Incident, ...]:
    """Write the scenes; returns their incidents.

    Args:
        ledger: an empty one.
        now: the time.
        cluster: whose.
        many: further incidents, which ended within the last half year.
        approvers: whose signatures the plans that wait would take.
    """
    return asyncio.run(write(ledger, now, cluster, many=many, approvers=approvers))


async def write(
    ledger: Ledger, now: datetime, cluster: str = CLUSTER, *, many: int = 0, approvers: tuple[Approver, ...] = ()
) -> tuple[Incident, ...]:
    """The same for those who run a loop already."""
    for batch in _batches(_old(now, cluster, many)):
        await ledger.commit(batch)
    written = [_scene(scene, now, cluster, approvers) for scene in scenes.ALL]
    for each in written:
        await ledger.commit(each.change)
    await ledger.commit(_around(now, cluster))
    return tuple(each.incident for each in written)


def _batches(written: Iterator[Written]) -> Iterator[Change]:
    kept: list[Change] = []
    for each in written:
        kept.append(each.change)
        if len(kept) == _BATCH:
            yield _together(kept)
            kept = []
    if kept:
        yield _together(kept)


def _together(changes: Sequence[Change]) -> Change:
    return Change(
        entries=tuple(entry for each in changes for entry in each.entries),
        attempts=tuple(attempt for each in changes for attempt in each.attempts),
        incidents=tuple(incident for each in changes for incident in each.incidents),
        cursors={name: value for each in changes for name, value in each.cursors.items()},
    )


def _scene(scene: Scene, now: datetime, cluster: str, approvers: tuple[Approver, ...] = ()) -> Written:
    detected = now - scene.ago
    ran_from = detected - timedelta(hours=9, minutes=12)
    record = JobRecord(
        job_id=scene.job,
        name=scene.name,
        user=scene.user,
        account=scene.account,
        partition=scene.partition,
        state=JobState.RUNNING,
        submit_time=ran_from,
        start_time=ran_from,
        nodes=scene.nodes,
        node_count=len(scene.nodes),
        task_count=8 * len(scene.nodes),
        gres_per_node="gpu:h100:8",
        stdout=f"/lustre/{scene.user}/{scene.name}/slurm-{scene.job}.out",
        work_dir=f"/lustre/{scene.user}/{scene.name}",
        restarts=0,
    )
    key = AttemptKey(cluster=cluster, job_id=scene.job, submit_time=ran_from)
    lineage = "j" + short_hash(f"{cluster}/{scene.job}", 10)
    attempt = Attempt(
        key=key, lineage=lineage, record=record, seen_at=ran_from, script="#!/bin/bash\nsrun python train.py\n"
    )
    diagnosis = scene.diagnosis(record.stdout) if scene.diagnosis else None
    plan = _plan(scene, key, diagnosis)
    mode = scene.mode
    verdict = Verdict(
        plan=plan,
        mode=mode,
        mode_reason=f"the policy of partition {scene.partition} says {mode}",
        policy_version="2026-11-30/4f1c",
        approvers=approvers,
        policy=Policy(mode=mode, approval_expires=scene.expires, approvers={**APPROVERS, **scene.approvers}),
    )
    steps = tuple(StepTime(name=name, at=detected + timedelta(seconds=s), text=text) for s, name, text in scene.steps)
    closed = detected + timedelta(seconds=scene.steps[-1][0]) if scene.outcome else None
    incident = Incident(
        id=scene.id,
        workflow_id=key.workflow_id,
        run_id=f"019a{short_hash(scene.id, 8)}",
        attempt=key,
        lineage=lineage,
        kind=scene.kind,
        phase=scene.phase,
        mode=mode,
        opened_at=detected + timedelta(seconds=0.4),
        detected_at=detected,
        occurred_at=detected - timedelta(seconds=scene.late),
        closed_at=closed,
        outcome=scene.outcome,
        outcome_reason=scene.reason,
        job_name=scene.name,
        user=scene.user,
        diagnosis=diagnosis,
        plan=plan if diagnosis else None,
        steps=steps if scene.outcome else (),
    )
    made = Rows(cluster, incident, attempt)
    ended = scene.kind not in {Interruption.HANG, Interruption.STRAGGLER}
    made.attempt_rows(
        ran_from, detected, ended=ended, how=f"FAILED, queued again by {'relight' if scene.again else 'nobody'}"
    )
    made.story(scene, detected, diagnosis, verdict)
    states = [
        AttemptState(attempt=attempt, running=not ended and not scene.again, ended_at=detected if ended else None)
    ]
    cursors = {progress_cursor(key): _progress(scene.step, ran_from, detected - timedelta(seconds=scene.late))}
    if scene.again:
        again = detected + timedelta(seconds=scene.again)
        spare = tuple(f"gpu-{90 + n:03}" for n in range(len(scene.exclude)))
        nodes = (*(node for node in scene.nodes if node not in scene.exclude), *spare)
        second = record.model_copy(update={"submit_time": again, "start_time": again, "restarts": 1, "nodes": nodes})
        next_key = AttemptKey(cluster=cluster, job_id=scene.job, submit_time=again)
        states.append(
            AttemptState(attempt=attempt.model_copy(update={"key": next_key, "record": second, "seen_at": again}))
        )
        cursors[progress_cursor(next_key)] = _progress(scene.step + 900, again, now - timedelta(seconds=4))
    change = Change(entries=tuple(made.entries), attempts=tuple(states), incidents=(incident,), cursors=cursors)
    return Written(change, incident)


def _plan(scene: Scene, key: AttemptKey, diagnosis: Diagnosis | None) -> Plan:
    summary = diagnosis.verdict.summary if diagnosis else "not diagnosed"
    return Plan(
        attempt=key,
        restart=scene.restart,
        exclude=scene.exclude,
        drain=scene.drain,
        cancel=scene.cancel,
        reason=summary,
        basis=scene.id,
    )


def _progress(step: int, begun: datetime, at: datetime) -> dict[str, Any]:
    """Progress at 2.31 s a step, with a save every 500 steps."""
    first = max(0, step - int((at - begun - START_UP).total_seconds() / STEP_S))
    saved = step - step % 500
    known = Progress(
        last_step=step,
        last_step_at=at,
        step_seconds=STEP_S,
        saved_step=saved,
        saved_at=at - (step - saved) * timedelta(seconds=STEP_S),
        first_step=first,
        first_step_at=begun + START_UP,
        saves=(step - first) // 500,
        saves_timed=(step - first) // 500,
        saving_seconds=(step - first) // 500 * 21.0,
    )
    return known.model_dump(mode="json")


# --- around the incidents ----


def _around(now: datetime, cluster: str) -> Change:
    """Jobs that just run, what the worker and the guard write, and the nodes in care."""
    sights = {
        name: Sight(within=timedelta(seconds=30), since=now - timedelta(days=3), looked=now, last=now)
        for name in EXPECTED
    }
    since = now - timedelta(minutes=7)
    blind = "metrics: http://prometheus:9090 answers 503 Service Unavailable"
    sights["metrics"] = Sight(within=timedelta(minutes=1), since=since, looked=now, last=since, problem=blind)
    sights["agents"] = sights["jobs"]
    worker = WorkerReport(
        worker="head01/4182",
        version="0.1.0",
        mode="approve",
        policy="2026-11-30/4f1c",
        started_at=now - timedelta(days=3),
        written_at=now + timedelta(hours=1),
        sights=sights,
    )
    grants = (Grant(node="gpu-012", incident="i07be11ab02", at=now - timedelta(minutes=31), partitions=("train",)),)
    counts = (PartitionCount(name="train", nodes=64, out=3), PartitionCount(name="dev", nodes=8, out=0))
    standing = Standing(written_at=now, seen_at=now - timedelta(seconds=8), grants=grants, partitions=counts)
    running = [_running(number, now, cluster) for number in range(12)]
    cursors = {
        sights_cursor(cluster): WorkerReports(workers=(worker,)).model_dump(mode="json"),
        standing_cursor(cluster): standing.model_dump(mode="json"),
        **{
            progress_cursor(s.attempt.key): _progress(
                4000 + 731 * n, s.attempt.record.submit_time, now - timedelta(seconds=3)
            )
            for n, s in enumerate(running)
        },
    }
    return Change(entries=tuple(_care(now, cluster)), attempts=tuple(running), cursors=cursors)


def _running(number: int, now: datetime, cluster: str) -> AttemptState:
    begun = now - timedelta(hours=2 + 3 * number)
    user, name = scenes.PEOPLE[number % len(scenes.PEOPLE)], scenes.NAMES[number % len(scenes.NAMES)]
    nodes = tuple(f"gpu-{20 + 2 * number + n:03}" for n in range(2))
    record = JobRecord(
        job_id=48800 + number,
        name=name,
        user=user,
        partition="train",
        state=JobState.RUNNING,
        submit_time=begun,
        start_time=begun,
        nodes=nodes,
        node_count=2,
        task_count=16,
        gres_per_node="gpu:h100:8",
        stdout=f"/lustre/{user}/{name}.out",
    )
    key = AttemptKey(cluster=cluster, job_id=record.job_id, submit_time=begun)
    return AttemptState(attempt=Attempt(key=key, lineage="j" + short_hash(str(key), 10), record=record, seen_at=begun))


def _care(now: datetime, cluster: str) -> Iterator[Entry]:
    for node, incident, cls, told in scenes.CARE:
        for number, (ago, step, phase, text, more) in enumerate(told):
            body = {"step": step, "phase": phase, "text": text, "incident": incident, "cls": cls, **more}
            name = f"node/{cluster}/{node}/run/{number}-{step}"
            yield Entry(
                id=name,
                kind=RowKind.CARE,
                at=now - ago,
                cluster=cluster,
                incident=f"c{short_hash(node, 10)}",
                node=node,
                body=body,
            )


# --- many of them ----


def _old(now: datetime, cluster: str, many: int) -> Iterator[Written]:
    """Incidents of the last half year, each with its rows, made from the scenes that ended."""
    ended = [scene for scene in scenes.ALL if scene.outcome]
    for number in range(many):
        scene = ended[number % len(ended)]
        node = f"gpu-{number % 500:03}"
        changed = scene._replace(
            id="i" + short_hash(f"old/{number}", 10),
            job=10_000 + number,
            name=scenes.NAMES[number % len(scenes.NAMES)],
            user=scenes.PEOPLE[number % len(scenes.PEOPLE)],
            nodes=tuple(f"gpu-{(number + n) % 500:03}" for n in range(4)),
            exclude=(node,) if scene.exclude else (),
            drain=(node,) if scene.drain else (),
            drained=tuple((seconds, node) for seconds, _ in scene.drained),
            ago=timedelta(hours=2) + number * timedelta(days=180) / many,
            again=0.0,
            todo="",
        )
        yield _scene(changed, now, cluster)
