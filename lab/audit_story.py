"""The rows that one incident leaves in the audit trail, as the activities write them: for benchmarks and tests."""

import itertools
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from sqlalchemy import insert

from relight.clients import ledger_schema as db
from relight.clients.ledger_chain import ZERO, Chain
from relight.clients.ledger_key import make_key
from relight.clients.ledger_rows import Work
from relight.clients.ledger_schema import connect, writing
from relight.clients.ledger_versions import prepare
from relight.domain.approvals import Approval, hear_signed, request_for
from relight.domain.attempts import AttemptKey
from relight.domain.incidents import incident_id
from relight.domain.ledger import Change, Entry, RowKind
from relight.domain.plan import Decision, Mode, Plan, Restart
from relight.domain.policy import Policy, Verdict
from relight.domain.rights import Approver, public_key, rights_of
from relight.domain.signatures import SignedDecision, signed

BEGAN = datetime(2026, 11, 30, 9, 27, 12, tzinfo=UTC)
KEYS = {name: Ed25519PrivateKey.from_private_bytes(name.ljust(32).encode()) for name in ("ada", "bob")}


def _public(key: Ed25519PrivateKey) -> str:
    return public_key(key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode())


LISTED = tuple(Approver(name=name, key=_public(key)) for name, key in KEYS.items())
_EVIDENCE = "NCCL WARN [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=48213, OpType=ALLREDUCE)"


class Story:
    """One incident of one job: a hang, restarted without the node that caused it, and that node drained."""

    def __init__(self, number: int, mode: Mode = Mode.AUTO, *, needed: int = 1, cluster: str = "main") -> None:
        self.mode = mode
        self.began = BEGAN + timedelta(seconds=20 * number)
        self.attempt = AttemptKey(cluster=cluster, job_id=1000 + number, submit_time=self.began)
        self.run_id = f"{number:032x}"
        self.incident = incident_id(self.attempt, self.run_id)
        self.node = f"gpu-{number % 512:03d}"
        policy = Policy(mode=mode, approvers={"restart": needed, "drain": needed})
        plan = Plan(
            attempt=self.attempt,
            restart=Restart.REQUEUE,
            exclude=(self.node,),
            drain=(self.node,),
            reason=f"rank 3 on {self.node} hangs; the others wait for it",
            basis=f"{number:064x}",
        )
        self.verdict = Verdict(plan=plan, mode=mode, mode_reason="the policy", policy=policy, approvers=LISTED)

    def at(self, seconds: float) -> datetime:
        """So long after it began."""
        return self.began + timedelta(seconds=seconds)

    def entry(
        self, step: str, kind: RowKind, seconds: float, body: dict[str, Any], *, phase: str = "done", node: str = ""
    ) -> Entry:
        """One row of it."""
        return Entry(
            id=f"{self.attempt.workflow_id}/{self.run_id}/{step}/{phase}",
            kind=kind,
            at=self.at(seconds),
            cluster=self.attempt.cluster,
            incident=self.incident,
            attempt=str(self.attempt),
            lineage=f"j{self.attempt.job_id:010x}",
            node=node,
            body=body,
        )

    def planned(self) -> Entry:
        """The plan."""
        body = {"digest": self.verdict.plan.digest, **self.verdict.model_dump(mode="json")}
        return self.entry("plan", RowKind.PLANNED, 2, body)

    def decisions(self, *names: str, seconds: float = 60, approved: bool = True) -> tuple[Entry, ...]:
        """What these people said, one after the other: only what counts becomes a row, as `Story` needs no other."""
        request = request_for(self.verdict, self.incident, self.run_id, owner="alice", now=self.at(3))
        approval, rows = Approval(request=request), []
        for number, name in enumerate(names, 1):
            at = self.at(seconds + number)
            said = Decision(approved=approved, digest=request.digest, by=name, reason="seen the Xid")
            word = SignedDecision(
                incident=self.incident,
                run_id=self.run_id,
                decision=said,
                at=at,
                nonce=f"{name}{number}",
                key=_public(KEYS[name]),
                signature="",
            )
            heard = hear_signed(approval, signed(word, KEYS[name]), at)
            approval = heard.approval
            body = {
                "decision": heard.decision.model_dump(mode="json"),
                "counts": heard.counts,
                "remark": heard.remark,
                "plan": request.digest,
                "score": approval.score,
            }
            if heard.proof:
                body["proof"] = heard.proof.model_dump(mode="json")
            rows.append(self.entry(f"decision-{number}", RowKind.DECISION, seconds + number + 0.1, body))
        return tuple(rows)

    def deed(self, step: str, what: str, seconds: float, text: str = "done", node: str = "") -> tuple[Entry, Entry]:
        """An intent and its effect."""
        done = {"text": text, "outcome": None, "at": self.at(seconds + 1).isoformat()}
        effect = {"step": step, "done": done, "meant": True}
        meant = {"what": what, "job": self.attempt.job_id, "plan": self.verdict.plan.digest}
        return (
            self.entry(step, RowKind.INTENT, seconds, meant, phase="intent", node=node),
            self.entry(step, RowKind.EFFECT, seconds + 1, effect, phase="effect", node=node),
        )

    def before(self) -> tuple[Entry, ...]:
        """Up to the plan."""
        evidence = {"source": "job_log", "text": _EVIDENCE, "node": self.node, "rank": 3, "at": self.began.isoformat()}
        summary = f"rank 3 on {self.node} is silent; 511 ranks wait in ALLREDUCE 48213"
        cause = {"signature": "nccl.timeout", "category": "gpu", "confidence": 0.9, "summary": summary}
        return (
            self.entry("open", RowKind.OPENED, 0, {"kind": "hang", "evidence": [evidence] * 2}),
            self.entry("confirm", RowKind.CONFIRMED, 1, {"reason": "silent for 42 s, GPUs idle", "outcome": None}),
            self.entry("diagnose", RowKind.DIAGNOSED, 1.5, {"hypotheses": [{**cause, "evidence": [evidence] * 3}]}),
            self.planned(),
        )

    def after(self) -> tuple[Entry, ...]:
        """From the first deed to the end."""
        leave = {"leave": {"node": self.node, "granted": True, "reason": ""}, "evidence": [_EVIDENCE]}
        return (
            self.entry("keep", RowKind.OUTPUTS_KEPT, 70, {"kept": [f"/home/alice/{self.incident}.out"]}),
            *self.deed("requeue", "requeue", 71, "Slurm shows restart 1, PENDING"),
            self.entry(f"leave-{self.node}", RowKind.LEAVE, 72, leave, node=self.node),
            *self.deed(f"exclude-{self.node}", "exclude", 73),
            *self.deed(f"drain-{self.node}", "drain", 74, node=self.node),
            *self.deed("start", "start", 76),
            self.entry("progress", RowKind.VERIFIED, 190, {"text": "step 48300 is past step 48213"}),
            self.entry("close", RowKind.CLOSED, 191, {"outcome": "recovered", "reason": "training moves", "steps": []}),
        )

    def rows(self) -> tuple[Entry, ...]:
        """All of it."""
        names = tuple(KEYS)[: self.verdict.policy.approvers_needed(rights_of(self.verdict.plan))]
        asked = self.decisions(*names) if self.mode is Mode.APPROVE else ()
        return (*self.before(), *asked, *self.after())


_PART = 20_000
Stored = dict[str, str]
"""A row's columns as they are stored, before it is numbered and chained."""


def stored(entries: Iterable[Entry]) -> Iterator[Stored]:
    """The columns of these rows."""
    yield from Work(Change(entries=tuple(entries))).entries.values()


def write(url: str, key_file: Path, entries: Iterable[Entry]) -> int:
    """Fill a new ledger with these rows; returns how many it has."""
    return fill(url, key_file, stored(entries))


def fill(url: str, key_file: Path, rows: Iterable[Stored]) -> int:
    """Fill a new ledger, many rows in one transaction; returns how many it has."""
    engine, count, newest = connect(url), 0, ZERO
    try:
        prepare(engine)
        chain, rest = Chain(make_key(key_file)), iter(rows)
        while part := list(itertools.islice(rest, _PART)):
            linked = []
            for row in part:
                count += 1
                linked.append(chain.link(row, count, newest))
                newest = linked[-1]["hash"]
            with writing(engine) as connection:
                connection.execute(insert(db.ledger), linked)
                chain.seal(connection, count, newest)
    finally:
        engine.dispose()
    return count
