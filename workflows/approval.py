"""Asking people about one plan, for any workflow that has one: the waiting, the hearing, and the two clocks.

The workflow keeps the signals and the update, and hands what they carry to its `Asking`. What counts is judged in
`domain.approvals`.
"""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import NamedTuple, Protocol

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from relight.domain.approvals import Approval, Heard, Request, begun, hear, hear_signed, unanswerable
    from relight.domain.base import Value, clip
    from relight.domain.incidents import Outcome
    from relight.domain.plan import Decision
    from relight.domain.rights import SITE_KEY
    from relight.domain.signatures import SignedDecision
    from relight.workflows.markdown import plain
    from relight.workflows.options import MAX_REFUSED


class Say(Value):
    """What the signals `approve`, `reject` and `cancel` carry, as typed into the Temporal web UI."""

    digest: str = ""
    """The first 8 or more digits of the plan's digest."""
    reason: str = ""


MOST_SIGNED = 20_000
"""Characters of a signed decision in all. A longer one is refused before it is in the history, where 50 would be MB."""


def check_size(said: SignedDecision) -> None:
    """Refuse what is far too large for a decision.

    Raises:
        ValueError: so that the update is rejected and leaves nothing in the history.
    """
    parts = (said.incident, said.run_id, said.nonce, said.key, said.signature, *said.decision.model_dump().values())
    size = sum(len(part) for part in parts if isinstance(part, str))
    if size > MOST_SIGNED:
        raise ValueError(f"a decision of {size} characters; accepted: at most {MOST_SIGNED}")


class Answer(NamedTuple):
    """What people said."""

    outcome: Outcome | None
    """How it ends where it was not approved; None: approved."""
    text: str


class Asks(Protocol):
    """What a workflow needs of it; incidents begun before there were quorums have another (`approval_before`)."""

    @property
    def approval(self) -> Approval | None:
        """Where it stands; None where that is not kept."""

    @property
    def settled(self) -> bool:
        """True once a word that decides has been heard, even if it is not written down yet."""

    async def answer(self, called_off: Callable[[], bool]) -> Answer:
        """Wait until people have decided, until it expires, or until it is called off."""

    async def signed(self, said: SignedDecision) -> str:
        """Hear a signed decision; the answer is for who sent it."""

    async def bare(self, said: Say, *, approved: bool) -> None:
        """Hear a bare signal."""

    def begin(self) -> str:
        """Use the approval up, right before the first action; why that must not begin, or empty."""

    def lapsed(self) -> str:
        """Why a further action must not begin now; empty: it may."""


class Asking:
    """One plan about which people are asked. Another plan is another `Asking`."""

    def __init__(
        self,
        request: Request,
        *,
        late: Callable[[], str],
        record: Callable[[Heard], Awaitable[object]],
        show: Callable[[], None],
    ) -> None:
        """Make ready to hear.

        Args:
            request: what is asked, and the rules.
            late: why no word counts any more, for reasons that the workflow knows; empty while words do.
            record: writes one word down, whether or not it counts; `heard.approval.heard` numbers it.
            show: is called when what people see of it has changed.
        """
        self._approval = Approval(request=request)
        self._late = late
        self._record = record
        self._show = show
        self._writing = 0
        self._refused = 0

    @property
    def approval(self) -> Approval:
        """Where it stands."""
        return self._approval

    @property
    def settled(self) -> bool:
        """True once it is approved or rejected, even if that is not written down yet."""
        return self._approval.over

    async def answer(self, called_off: Callable[[], bool]) -> Answer:
        """Wait for people; nobody answering means no. Where asking is no use, that is the answer at once.

        Args:
            called_off: True once what is asked about is moot; the workflow looks at that itself afterwards.
        """
        if wrong := unanswerable(self._approval.request):
            return Answer(Outcome.EXPIRED, f"{wrong}; nobody was asked, and nothing was done")
        until = self._approval.request.until
        try:
            await workflow.wait_condition(
                lambda: self.settled or called_off(),
                timeout=max(until - workflow.now(), timedelta(0)),
                timeout_summary="approval expires",
            )
        except TimeoutError:
            score = self._approval.score if self._approval.votes else "nobody decided"
            return Answer(Outcome.EXPIRED, f"{score} in time; nothing was done")
        # What was decided stands in the ledger before anything is done by it: no ledger, no mutation.
        await workflow.wait_condition(lambda: not self._writing or called_off())
        rejection = self._approval.rejection
        if rejection:
            return Answer(Outcome.REJECTED, rejection.reason or "rejected without a reason")
        votes = self._approval.votes
        return Answer(None, "; ".join(f"by {vote.by or 'an unverified sender'}: {vote.reason}" for vote in votes))

    async def signed(self, said: SignedDecision) -> str:
        """Hear a signed decision; the answer says whether it counts, and why not."""
        return await self._heard(lambda: hear_signed(self._approval, said, workflow.now(), late=self._late()))

    async def bare(self, said: Say, *, approved: bool) -> None:
        """Hear a bare signal; whether it counts stands in the ledger and in the story."""
        decision = Decision(approved=approved, digest=said.digest, reason=said.reason)
        await self._heard(lambda: hear(self._approval, decision, workflow.now(), late=self._late()))

    async def _heard(self, judged: Callable[[], Heard]) -> str:
        if self._refused >= MAX_REFUSED:
            return "not counted: too many decisions that do not count"
        heard = judged()
        # Kept before the ledger is written: what arrives meanwhile is judged by where it stands now.
        self._approval = heard.approval
        self._refused += not heard.counts
        self._writing += 1
        try:
            await self._record(heard)
        finally:
            self._writing -= 1
        self._show()
        return heard.answer

    def begin(self) -> str:
        """Use the approval up, right before the first action; why that must not begin, or empty."""
        self._approval, wrong = begun(self._approval, workflow.now())
        return wrong

    def lapsed(self) -> str:
        """Why a further action that has not begun must not begin now; empty: it may."""
        return self._approval.lapsed(workflow.now())


def waiting_lines(approval: Approval) -> list[str]:
    """What the Temporal web UI shows while people are asked."""
    request = approval.request
    until = f"{request.until:%Y-%m-%d %H:%M:%S} UTC"
    able = clip(", ".join(SITE_KEY if each == "site" else each for each in request.able), 200)
    lines = [
        f"**Waiting for people until {until}: {approval.score}**; without an answer nothing is done.",
        f"- `relight approve {request.subject}` or `relight reject {request.subject} --reason ...`",
        f"- asked: {', '.join(request.rights)} ({request.weight}); may approve: {able or 'nobody by signature'}",
    ]
    if request.requested_by:
        lines.append(f"- {plain(request.requested_by, 100)} asked for it, so somebody else must approve it")
    if request.takes_bare:
        lines.append(f'- or send the signal `approve` here: `{{"digest": "{request.digest[:12]}", "reason": "..."}}`')
    return lines
