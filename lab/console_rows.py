"""The rows of one made-up incident, as the activities write them: for `lab.console_seed`."""

from datetime import datetime, timedelta
from typing import Any

from relight.domain.attempts import Attempt
from relight.domain.base import Value
from relight.domain.diagnosis import Diagnosis
from relight.domain.evidence import Detection
from relight.domain.incidents import Incident, Outcome, Phase
from relight.domain.ledger import Entry, RowKind
from relight.domain.plan import Decision
from relight.domain.policy import Verdict
from relight.lab.console_scenes import Scene


class Rows:
    """The rows of one incident, as the activities write them."""

    def __init__(self, cluster: str, incident: Incident, attempt: Attempt) -> None:
        self.entries: list[Entry] = []
        self._cluster, self._incident, self._attempt = cluster, incident, attempt

    def attempt_rows(self, begun: datetime, over: datetime, *, ended: bool, how: str) -> None:
        """Seen running, and, where it has ended, how."""
        key, record = self._attempt.key, self._attempt.record.model_dump(mode="json")
        self._of_attempt(f"{key}/seen", RowKind.ATTEMPT_SEEN, begun, {"record": record})
        if ended:
            self._of_attempt(f"{key}/ended", RowKind.ATTEMPT_ENDED, over, {"how": how, "record": record})

    def _of_attempt(self, name: str, kind: RowKind, at: datetime, body: dict[str, Any]) -> None:
        known = {"attempt": str(self._attempt.key), "lineage": self._attempt.lineage}
        self.entries.append(Entry(id=name, kind=kind, at=at, cluster=self._cluster, body=body, **known))

    def add(self, step: str, kind: RowKind, at: datetime, body: dict[str, Any] | Value, node: str = "") -> None:
        """One step of the incident."""
        plain = body.model_dump(mode="json") if isinstance(body, Value) else body
        name = f"{self._incident.workflow_id}/{self._incident.run_id}/{step}"
        known = {
            "attempt": str(self._attempt.key),
            "lineage": self._attempt.lineage,
            "incident": self._incident.id,
            "node": node,
        }
        self.entries.append(Entry(id=name, kind=kind, at=at, cluster=self._cluster, body=plain, **known))

    def story(self, scene: Scene, detected: datetime, diagnosis: Diagnosis | None, verdict: Verdict) -> None:
        """All steps up to where the scene stands."""

        def at(seconds: float) -> datetime:
            return detected + timedelta(seconds=seconds)

        detection = Detection(
            id=f"{self._attempt.key}/ended", attempt=self._attempt.key, kind=scene.kind, detected_at=detected
        )
        self.add("open/done", RowKind.OPENED, at(0.4), {"detection": detection.model_dump(mode="json")})
        if scene.phase is Phase.CONFIRMING:
            return
        self.add("confirm/done", RowKind.CONFIRMED, at(0.6), {"outcome": None, "reason": scene.confirmed})
        if diagnosis is None:
            return
        self.add("diagnose/done", RowKind.DIAGNOSED, at(2.1), diagnosis)
        self.add(
            "plan/done", RowKind.PLANNED, at(2.3), {"digest": verdict.plan.digest, **verdict.model_dump(mode="json")}
        )
        for number, (seconds, by, approved, why) in enumerate(scene.said):
            word = Decision(approved=approved, digest=verdict.plan.digest, by=by, reason=why, verified=True)
            self.add(
                f"decision-{number}/done",
                RowKind.DECISION,
                at(seconds),
                {"decision": word.model_dump(mode="json"), "counts": True, "remark": ""},
            )
        for seconds, node in scene.drained:
            leave = {"leave": {"node": node, "granted": True, "reason": "drain 1 of 4 in this hour"}}
            self.add(f"leave-{node}/done", RowKind.LEAVE, at(seconds), leave, node)
            self.add(
                f"drain-{node}/intent",
                RowKind.INTENT,
                at(seconds + 0.1),
                {"what": "drain", "reason": f"relight:{scene.id}: bad GPU"},
                node,
            )
            done = {"step": f"drain-{node}", "done": {"text": f"{node} has the drain flag", "outcome": None}}
            self.add(f"drain-{node}/effect", RowKind.EFFECT, at(seconds + 0.6), done, node)
        if scene.again:
            self.add("requeue/intent", RowKind.INTENT, at(scene.again - 6), {"what": "requeue", "job": scene.job})
            back = {"step": "requeue", "done": {"text": "Slurm shows restart 1, PENDING", "outcome": None}}
            self.add("requeue/effect", RowKind.EFFECT, at(scene.again - 5), back)
            self.add(
                "running/done",
                RowKind.VERIFIED,
                at(scene.again),
                {"nodes": [node for node in scene.nodes if node not in scene.exclude]},
            )
        if scene.outcome in {Outcome.RECOVERED, Outcome.ADOPTED}:
            self.add(
                "progress/done",
                RowKind.VERIFIED,
                at(scene.steps[-1][0]),
                {"what": "progress", "moved": True, "text": scene.reason},
            )
        if scene.todo:
            self.add("escalate/done", RowKind.ESCALATED, at(scene.steps[-1][0]), {"next": scene.todo})
        if scene.outcome:
            self.add(
                "close/done",
                RowKind.CLOSED,
                at(scene.steps[-1][0]),
                {"outcome": str(scene.outcome), "reason": scene.reason},
            )
