"""The page of one incident, from which a person's word on the plan is sent."""

from typing import TYPE_CHECKING, Any
from uuid import uuid4

from relight.console.web.look import Html, tag
from relight.console.web.look_parts import notice
from relight.console.web.pages import incident
from relight.console.web.pages.asked import Asked, View
from relight.console.web.pages.showing import Showing

if TYPE_CHECKING:
    from relight.console.web.api_build import Desk
    from relight.console.web.roles import Identity


class Deciding(Showing):
    """The page of one incident, from which a word can be sent."""

    _digest = ""
    """Of the plan that this person has before them."""
    _answer: Html | None = None
    _sending = False

    def extra(self) -> None:
        """Take the buttons' words."""
        from nicegui import ui

        self._once = uuid4().hex
        ui.on("relight", self._heard, args=None)

    async def load(self, asked: Asked) -> View:
        """The incident, with what is asked of this person; what is being tried only once the page is shown."""
        page = await asked.desk.reading.incident(asked.who, asked.name)
        if not self._digest and page.plan:
            self._digest = page.plan.digest
        tried = None
        if page.line.open and self.shown:
            tried = incident.trying(await asked.desk.reading.trying(asked.who, asked.name))
        return incident.parts(page, asked.now, self._digest, answer=self._answer, sending=self._sending, beside=tried)

    async def _heard(self, event: Any) -> None:
        told = event.args if isinstance(event.args, dict) else (event.args or [{}])[0]
        word, reason = str(told.get("word", "")), str(told.get("reason", "")).strip()
        if word == "look":
            self._digest, self._answer = "", None
        elif word in {"approve", "reject"} and not self._sending:
            await self._send(approve=word == "approve", digest=str(told.get("digest", "")), reason=reason)
        await self.again()

    async def _send(self, *, approve: bool, digest: str, reason: str) -> None:
        if not approve and not reason:
            self._answer = notice("bad", "Nothing sent: say why you reject it.")
            return
        if not await self._still_signed_in():
            return
        self._sending, self._answer = True, None
        try:
            self._answer = await _decided(
                self.desk,
                self.who,
                self.name,
                approve=approve,
                digest=digest,
                reason=reason,
                once=f"{self._once}-{digest[:12]}-{approve}",
            )
        finally:
            self._sending = False


async def _decided(
    desk: "Desk", who: "Identity", name: str, *, approve: bool, digest: str, reason: str, once: str
) -> Html:
    from relight.console.web.decisions import DecisionAsk
    from relight.console.web.errors import WebError

    try:
        said = await desk.decisions.decide(
            who, name, DecisionAsk(approve=approve, digest=digest, reason=reason, once=once)
        )
    except WebError as error:
        first, *rest = str(error).splitlines() or [""]
        return notice("bad", tag("strong", f"{error.title}: "), first, [tag("div", line) for line in rest])
    return notice(
        "good" if said.counted else "bad", tag("strong", "Counted. " if said.counted else "Not counted. "), said.answer
    )
