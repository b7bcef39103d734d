"""Values as the console reads them, made by hand from the lab's scenes: for tests of what the pages say."""

from datetime import UTC, datetime, timedelta
from typing import Any

from relight.console.web import read_incident_values as iv
from relight.console.web import read_values as rv
from relight.domain.diagnosis import Hypothesis
from relight.domain.evidence import Evidence
from relight.domain.incidents import Phase
from relight.lab.console_scenes import ALL, Scene

NOW = datetime(2026, 12, 1, 3, 14, 15, tzinfo=UTC)
SCENES = {scene.id: scene for scene in ALL}
WAITING = "i3fa9c1d2e4"
DIGEST = "4f1c9e" + "0" * 58


def line(scene: Scene, **changes: Any) -> rv.IncidentLine:
    detected = NOW - scene.ago
    cause = scene.diagnosis("/lustre/x.out").verdict if scene.diagnosis else None
    waiting = scene.phase is Phase.PLANNING
    given: dict[str, Any] = {
        "id": scene.id,
        "job_id": scene.job,
        "job": str(scene.job),
        "job_name": scene.name,
        "user": scene.user,
        "kind": str(scene.kind),
        "phase": "waiting for approval" if waiting else str(scene.phase),
        "mode": str(scene.mode),
        "outcome": str(scene.outcome or ""),
        "outcome_reason": scene.reason,
        "cause": cause.signature if cause else "",
        "category": str(cause.category) if cause else "",
        "confidence": cause.confidence if cause else None,
        "summary": cause.summary if cause else "",
        "nodes": cause.implicated.nodes if cause else (),
        "plan": f"requeue job {scene.job} excluding gpu-012; drain gpu-012" if cause else "",
        "digest": DIGEST if cause else "",
        "occurred_at": detected - timedelta(seconds=scene.late),
        "detected_at": detected,
        "opened_at": detected + timedelta(seconds=0.4),
        "closed_at": detected + timedelta(seconds=scene.steps[-1][0]) if scene.outcome else None,
        "open": scene.outcome is None,
        "waiting": waiting,
        "decide_until": detected + scene.expires if waiting else None,
        "approvals": "0 of 1 approval" if waiting else "",
    }
    return rv.IncidentLine(**{**given, **changes})


def mark(evidence: Evidence) -> iv.Mark:
    return iv.Mark(
        source=str(evidence.source),
        trust=str(evidence.trust),
        text=evidence.text,
        signature=evidence.signature or "",
        node=evidence.node or "",
        rank=evidence.rank,
        gpu=evidence.gpu or "",
        at=evidence.at,
        file=evidence.file or "",
        line=evidence.line,
    )


def cause(found: Hypothesis) -> iv.Cause:
    named = found.implicated
    return iv.Cause(
        signature=found.signature,
        category=str(found.category),
        confidence=found.confidence,
        summary=found.summary,
        nodes=named.nodes,
        ranks=named.ranks,
        gpus=named.gpus,
        drain_nodes=found.drain_nodes,
        evidence=tuple(mark(e) for e in found.evidence),
    )


def steps(scene: Scene) -> tuple[iv.Step, ...]:
    told = scene.steps or (
        (0.0, "detected", str(scene.kind)),
        (0.6, "confirmed", scene.confirmed),
        (2.1, "diagnosed", "GPU has fallen off the bus"),
        (2.3, "planned", "requeue"),
    )
    before, made = -scene.late, [(-scene.late, "happened", "")]
    found = []
    for seconds, name, text in (*made, *told):
        at = NOW - scene.ago + timedelta(seconds=seconds)
        found.append(
            iv.Step(
                name=name,
                at=at,
                text=text,
                since_detection=timedelta(seconds=seconds),
                took=timedelta(seconds=seconds - before),
            )
        )
        before = seconds
    return tuple(found)


def plan() -> iv.PlanView:
    return iv.PlanView(
        words="requeue job 48711 excluding gpu-012; drain gpu-012",
        reason="GPU 0000:5d:00 on gpu-012 has fallen off the bus (Xid 79)",
        digest=DIGEST,
        short_digest=DIGEST[:8],
        mode="approve",
        mode_reason="the policy of partition train says approve",
        policy_version="2026-11-30/4f1c",
        policy_rules=(),
        restart="requeue",
        cancel=False,
        exclude=("gpu-012",),
        drain=("gpu-012",),
        rights=("restart", "drain"),
        acts=True,
        requeue_until=None,
        fresh="",
        requested_by="",
    )


def approval(**changes: Any) -> iv.ApprovalView:
    given: dict[str, Any] = {
        "waiting": True,
        "needed": 1,
        "have": 0,
        "score": "0 of 1 approval",
        "until": NOW + timedelta(minutes=26),
        "on_timeout": "Without an answer nothing is done, and the incident ends as expired.",
        "able": ("site",),
        "may_approve": True,
        "may_reject": True,
        "why_not": "",
        "command": "relight approve i3fa9c1d2e4 --digest 4f1c9e00",
        "said": (),
    }
    return iv.ApprovalView(**{**given, **changes})


def incident(name: str = WAITING, **changes: Any) -> iv.IncidentPage:
    scene = SCENES[name]
    found = scene.diagnosis("/lustre/alice/llama3/slurm-48711.out") if scene.diagnosis else None
    told = line(scene)
    given: dict[str, Any] = {
        "line": told,
        "cluster": "main",
        "partition": scene.partition,
        "job_nodes": scene.nodes,
        "restarts": 0,
        "attempt": f"main/{scene.job}/x",
        "lineage": "j1",
        "workflow_id": f"recover/main/{scene.job}/x",
        "run_id": "r",
        "temporal_url": "http://127.0.0.1:8233/namespaces/default/workflows/x/r",
        "steps": steps(scene),
        "cause": cause(found.verdict) if found else None,
        "others": tuple(cause(h) for h in found.hypotheses[1:]) if found else (),
        "root": mark(found.verdict.evidence[0]) if found else None,
        "around": tuple(iv.NearLine(line=n.line, text=n.text) for n in found.around) if found else (),
        "echoes": found.echoes if found else 0,
        "folded": found.folded if found else (),
        "ranks": tuple(
            iv.RankLine(
                rank=r.rank,
                node=r.node or "",
                gpu=r.gpu or "",
                last_step=r.last_step,
                said=r.said,
                implicated=r.rank in found.verdict.implicated.ranks,
            )
            for r in found.ranks
        )
        if found
        else (),
        "suspects": found.suspects if found else (),
        "unreadable": found.unreadable if found else (),
        "would_change": found.would_change if found else (),
        "failed_step": found.failed_step if found else None,
        "plan": plan() if found else None,
        "approval": approval() if told.waiting else None,
        "deeds": (),
        "leaves": (),
        "verified": (),
        "todo": (scene.todo,) if scene.todo else (),
        "outputs": (f"/lustre/{scene.user}/{scene.name}/slurm-{scene.job}.out",),
        "kept": (),
        "previous": "",
        "following": "",
    }
    return iv.IncidentPage(**{**given, **changes})


def now(**changes: Any) -> rv.NowPage:
    lines = [line(scene) for scene in reversed(ALL)]
    guard = rv.GuardView(
        breaker_open=False,
        breaker_since=None,
        breaker_why="",
        kill_switch=False,
        kill_file="/etc/relight/stop",
        unknown="",
        pauses=(),
        drains_used=1,
        drains_of=1,
        downs_used=0,
        downs_of=1,
        partitions=(),
        seen_at=NOW,
        lines=(
            rv.Told(text="1 of 1 drain this hour used"),
            rv.Told(text="3 of 64 nodes of partition train unavailable (15% = 9)", tone="quiet"),
        ),
    )
    detectors = [
        rv.DetectorLine(name=name, state="sees", sees=True, last=NOW, since=None, why="")
        for name in ("jobs", "nodes", "logs", "outbox")
    ]
    detectors.append(
        rv.DetectorLine(
            name="metrics",
            state="blind",
            sees=False,
            last=NOW,
            since=NOW - timedelta(minutes=7),
            why="http://prometheus:9090 answers 503",
        )
    )
    given: dict[str, Any] = {
        "cluster": "main",
        "mode": "approve",
        "at": NOW,
        "well": False,
        "problem": "Not all is seen: metrics blind.",
        "workers": (
            rv.WorkerLine(
                worker="head01/4182",
                version="0.1.0",
                started_at=NOW,
                last_sign=NOW,
                lives=True,
                policy="2026-11-30/4f1c",
                policy_problem="",
            ),
        ),
        "detectors": tuple(detectors),
        "guard": guard,
        "open": 4,
        "waiting": tuple(each for each in lines if each.waiting),
        "opened": tuple(each for each in lines if each.open),
        "recent": tuple(each for each in lines if not each.open)[:4],
        "escalated": (
            rv.EscalationLine(
                incident="i0000000b02",
                job_id=48630,
                at=NOW - timedelta(hours=5),
                todo="job 48630 still stands failed: scontrol requeue 48630",
            ),
        ),
        "undelivered": 0,
        "oldest_undelivered": None,
        "running": 16,
        "unreadable_outputs": 0,
    }
    return rv.NowPage(**{**given, **changes})
