"""Deciding on a plan from the web: a person who has signed in says yes or no, the console signs, a workflow judges."""

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import TYPE_CHECKING

from pydantic import Field

from relight.config.settings import Settings
from relight.console import decide
from relight.console.context import connected
from relight.console.decide import OF_NODE, Place, Ready
from relight.console.errors import NotFoundStop, RefusedStop, Stop
from relight.console.web.decisions_judge import Judge, Question
from relight.console.web.errors import BadAsk, NotThere, Overtaken, Refused, TooMany, Unreachable, WebError
from relight.console.web.limits import Limit
from relight.console.web.read_shelf import Shelf
from relight.console.web.roles import Identity, May
from relight.domain.approvals import MAX_REASON
from relight.domain.base import Value
from relight.domain.plan import MIN_DIGEST_PREFIX

if TYPE_CHECKING:
    from temporalio.client import Client

MOST_KEPT = 1000
"""Answers that are kept for who asks twice."""
_LOG = logging.getLogger(__name__)


class DecisionAsk(Value):
    """A person's word on a plan."""

    approve: bool
    digest: str = Field(min_length=MIN_DIGEST_PREFIX, max_length=64, pattern="^[0-9a-fA-F]+$")
    """Of the plan that the person was shown: all of it, or its first 8 or more digits."""
    reason: str = Field(default="", max_length=MAX_REASON)
    once: str = Field(min_length=8, max_length=100)
    """Made by who asks, another for each decision: said twice with the same one, it counts once."""


class Decided(Value):
    """What became of it."""

    counted: bool
    answer: str


class Decisions:
    """Takes decisions, for everybody who has signed in."""

    def __init__(
        self,
        settings: Settings,
        shelf: Shelf,
        judge: Judge,
        *,
        limit: Limit,
        now: Callable[[], datetime],
        connect: "Callable[[Settings], Awaitable[Client]]" = connected,
    ) -> None:
        self._settings = settings
        self._shelf = shelf
        self._judge = judge
        self._limit = limit
        self._now = now
        self._connect = connect
        self._client: Client | None = None
        self._kept: OrderedDict[tuple[str, str], tuple[str, DecisionAsk, asyncio.Task[Decided]]] = OrderedDict()

    async def decide(self, who: Identity, name: str, ask: DecisionAsk) -> Decided:
        """Decide on an incident, or on what is asked about a node (`node/<name>`).

        Raises:
            Overtaken: it did not count, or cannot any more; the plan has changed.
            Refused: this person may not.
            NotThere: there is no such thing (for this person).
            TooMany: too often.
            Unreachable: no answer: it may have counted, so look before saying it again.
        """
        key = (who.name, ask.once)
        known = self._kept.get(key)
        if known is None:
            if wait := self._limit.wait(who.name):
                raise TooMany(f"too many decisions of {who.name}: the next one in {wait} s", wait)
            self._limit.use(who.name)
            task = asyncio.create_task(self._decide(who, name, ask), name=f"decision on {name[:40]}")
            known = self._kept[key] = (name, ask, task)
            self._forget()
        elif known[:2] != (name, ask):
            raise BadAsk("once: it was used for another decision; make a new one for each")
        try:
            # Shielded: a browser that goes away has said its word all the same, and asks again with the same `once`.
            return await asyncio.shield(known[2])
        except Unreachable:
            self._kept.pop(key, None)  # asked again, Temporal tells by the decision's id whether it was heard
            raise

    def _forget(self) -> None:
        while len(self._kept) > MOST_KEPT:
            _, _, task = self._kept.popitem(last=False)[1]
            task.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _decide(self, who: Identity, name: str, ask: DecisionAsk) -> Decided:
        try:
            ready = await self._ready(who, name)
            request = ready.request
            if not request.digest.startswith(ask.digest.lower()):
                raise Overtaken(
                    f"the plan has changed since you looked: its digest is {request.digest[:8]} now, "
                    f"not {ask.digest[:8].lower()}. Nothing was decided; look at the new plan."
                )
            question = Question(request.rights, request.owner, request.approvers)
            signer, by = await asyncio.to_thread(self._judge.signer, who, question, approve=ask.approve)
            signed = decide.sign(
                signer,
                request,
                approved=ask.approve,
                reason=ask.reason,
                at=self._now(),
                by=by,
                nonce=_nonce(who, ask, request.subject, request.run_id),
            )
            answer = await decide.send(ready, signed)
        except Stop as error:
            raise _told(error) from error
        word = "approved" if ask.approve else "rejected"
        _LOG.info("%s %s %s (%s): %s", who.name, word, request.subject, who.way, answer)
        return Decided(counted=True, answer=answer)

    async def _ready(self, who: Identity, name: str) -> Ready:
        if name.startswith(OF_NODE):
            if not who.may(May.SEE_ALL):
                raise Refused(f"{who.name} is {who.role} here: that role decides on own jobs only")
            return await decide.ready_node(await self._temporal(), self._settings, name.removeprefix(OF_NODE))
        incident = await self._shelf.ledger.incident(name)
        if incident is None or incident.id != name or not who.sees(incident.user):
            raise NotThere(f"no incident {name[:40]}")
        if not incident.open:
            raise Overtaken(f"incident {incident.id} is over: {incident.outcome}. Nothing was decided.")
        return await decide.ready(await self._temporal(), Place(incident.id, incident.workflow_id, incident.run_id))

    async def _temporal(self) -> "Client":
        if self._client is None:
            self._client = await self._connect(self._settings)
        return self._client


def _nonce(who: Identity, ask: DecisionAsk, subject: str, run_id: str) -> str:
    """The same for the same word said twice, also after this process has begun anew."""
    said = f"{who.name}\n{ask.once}\n{subject}\n{run_id}"
    return hashlib.sha256(said.encode(errors="backslashreplace")).hexdigest()[:32]


def _told(error: Stop) -> WebError:
    """The CLI's errors as the web tells them: their first line; what to type is not for here."""
    first = error.message.partition("\n")[0]
    if isinstance(error, RefusedStop):
        return Overtaken(first)
    if isinstance(error, NotFoundStop):
        return NotThere(first)
    return Unreachable(first)
