"""When the agent reports, and what it makes of the answer. Nothing is forgotten before the controller has it."""

import json
import logging
import random
from collections.abc import Callable
from typing import Any, NamedTuple

from relight.workers.agent_faults import MAX_SENT, Fault, Faults, printable
from relight.workers.agent_probe import Answer
from relight.workers.agent_send import LAST_OK, OK, UNREACHABLE, Outcome, Sender

log = logging.getLogger("relight.agent")

OVERDUE = 15.0
"""Seconds after which an exchange is given up, however steadily its bytes drip."""
LONGEST_PAUSE = 30.0
REFUSED_PAUSE = 60.0
"""Seconds between attempts that can hardly succeed before a person has done something."""
BATCHED_WITHIN = 0.5
"""Seconds after a report with faults until the next: a storm becomes two reports a second."""
MAX_PROBES = 8

_TO_DO = {
    401: "put this node's own token into {token}; no restart is needed",
    403: "put this node's own token into {token} (no restart is needed), or give its name in Slurm with --node",
    404: "is --controller the address of its endpoint for agents?",
}
_UNACCEPTABLE = frozenset({400, 413, 422})
_NO_RECEIPT = "its answer is no receipt: is --controller the address of its endpoint for agents?"


class Sent(NamedTuple):
    """A report under way."""

    at: float
    faults: list[Fault]
    answers: list[Answer]
    dropped: int
    """So many faults it says to be dropped."""


class Delivery:
    """Reports to one controller, one at a time.

    Args:
        fixed: what all reports of this agent say: node, boot, version.
        faults: to be told.
        sender: to the controller.
        token: the token file's path, for advice.
        beat: seconds between two beats.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        *,
        fixed: dict[str, str],
        faults: Faults,
        sender: Sender,
        token: str,
        beat: float,
        clock: Callable[[], float],
    ) -> None:
        """Nothing has been sent yet."""
        self._fixed = fixed
        self._faults = faults
        self._sender = sender
        self._token = token
        self._beat = beat
        self._clock = clock
        self.answers: list[Answer] = []
        """To probes, to be sent."""
        self._sequence = 0
        self._sent: Sent | None = None
        # Ten thousand agents that were started at once do not beat at once.
        self._next_beat = clock() + random.uniform(0, beat / 5)  # noqa: S311 - no secret
        self._not_before = 0.0
        self._failures = 0
        self._batch = MAX_SENT
        self._said = ""

    @property
    def due(self) -> float:
        """When there is something to do next, by the clock."""
        if self._sent:
            return self._sent.at + OVERDUE
        return max(self._not_before, 0.0 if len(self._faults) or self.answers else self._next_beat)

    def report(self, beat: dict[str, Any]) -> None:
        """Send what there is; only when `due`."""
        now = self._clock()
        if self._sent:
            self._sender.abort()
            self._say("no answer in time")
            self._sent = self._sent._replace(at=now)  # its outcome follows; where not, it is aborted again
            return
        faults, answers = self._faults.first(self._batch), self.answers[:1]  # each may be large
        told = [fault.as_json() for fault in faults]
        ours = {"sequence": self._sequence, "every": self._beat, "beat": beat}
        report = {**self._fixed, **ours, "faults": told, "answers": answers}
        self._sequence += 1
        self._sent = Sent(now, faults, answers, self._faults.dropped)
        if now >= self._next_beat:  # what is told in between does not put the beat off: questions are fetched with it
            self._next_beat = max(self._next_beat + self._beat, now + self._beat / 2)
        self._sender.send(json.dumps(report, separators=(",", ":"), ensure_ascii=False).encode(errors="replace"))

    def ended(self, outcome: Outcome) -> list[Any] | None:
        """Take in how sending ended: the controller's questions, or None where it has not taken the report."""
        sent, self._sent = self._sent, None
        if sent is None:
            return None
        if not OK <= outcome.status <= LAST_OK:
            self._failed(sent, outcome)
            return None
        try:
            receipt = json.loads(outcome.body)
            kept, probes = int(receipt.get("faults", 0)), list(receipt.get("probes", ()))
        except (ValueError, TypeError, AttributeError):
            self._pause(_NO_RECEIPT)
            return None
        if self._said:
            log.warning("the controller is reached again")
        self._said, self._failures, self._batch = "", 0, min(2 * self._batch, MAX_SENT)
        self._faults.acknowledged(sent.faults[: max(0, kept)])
        self._faults.dropped -= sent.dropped
        self.answers = [answer for answer in self.answers if answer not in sent.answers]
        # Where it answers and keeps nothing, its ledger may be down: it is not asked again at once.
        pause = self._beat if kept < len(sent.faults) else BATCHED_WITHIN if sent.faults else 0.0
        self._not_before = self._clock() + pause
        return probes[:MAX_PROBES]

    def _failed(self, sent: Sent, outcome: Outcome) -> None:
        if outcome.status in _UNACCEPTABLE and (sent.faults or sent.answers):
            self._give_in(sent, outcome.status)
            return
        if outcome.status == UNREACHABLE:
            self._pause(outcome.problem)
            return
        said = printable(outcome.body.partition(b"\n")[0].decode(errors="replace"), 200)
        problem = f"it answers {outcome.status} {said}".strip()
        if advice := _TO_DO.get(outcome.status):
            self._pause(f"{problem}: {advice.format(token=self._token)}", at_least=REFUSED_PAUSE)
        else:
            self._pause(problem, at_least=min(outcome.retry_after, REFUSED_PAUSE))

    def _give_in(self, sent: Sent, status: int) -> None:
        """Something in the report is not acceptable: find out what, and go on without it."""
        if sent.answers:
            self.answers = [answer for answer in self.answers if answer not in sent.answers]
            what = f"{len(sent.answers)} answers"
        elif len(sent.faults) > 1:
            self._batch = len(sent.faults) // 2
            return
        else:
            self._faults.acknowledged(sent.faults)
            self._faults.dropped += 1
            what = f"fault {sent.faults[0].id}"
        log.error("the controller does not accept %s (%d): dropped", what, status)

    def _pause(self, problem: str, at_least: float = 0.0) -> None:
        """Wait longer with each failure, and not all agents equally long."""
        longest = min(LONGEST_PAUSE, 2.0**self._failures)
        self._failures = min(self._failures + 1, 10)
        self._not_before = self._clock() + max(at_least, longest) * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
        self._say(problem)

    def _say(self, problem: str) -> None:
        if problem != self._said:
            log.warning("the controller is not reached: %s", problem)
        self._said = problem
