"""Clicks in Slack on Approve and Reject: as if the person whom the site lists for that account decided in the console.

Slack posts a click and wants an answer within 3 s: it gets one at once, the rest is done after it. What became of it is
told where Slack says (`response_url`), which must be below `notify.slack.hooks`: nothing is sent anywhere else.
"""

import asyncio
import json
import logging
from collections import OrderedDict
from importlib.util import find_spec
from typing import Any
from urllib.parse import parse_qs, urlsplit

from fastapi import APIRouter, Request
from pydantic import ValidationError
from starlette.background import BackgroundTask
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from relight.clients.ledger import LedgerError
from relight.config.notify_slack import SlackAppSettings
from relight.config.reading import ConfigError
from relight.console.errors import Stop
from relight.console.web.decisions import DecisionAsk
from relight.console.web.desk import Desk, desk_of
from relight.console.web.errors import BadAsk, NotThere, Overtaken, Refused, Stranger, Unreachable, WebError
from relight.console.web.roles import Identity
from relight.console.web.slack_answers import ephemeral, tell
from relight.domain.notices_slack import (
    BLOCK_ACTIONS,
    LASTS,
    Click,
    Interaction,
    click_of,
    settled,
    unproven,
)

PATH = "/slack/interactions"
FORM = "application/x-www-form-urlencoded"
MOST_AT_ONCE = 50
MOST_SEEN = 10_000
WITHIN_S = 60
"""For all of one click: decided, and told."""
_REMEMBERED_S = 2 * LASTS.total_seconds()
_LOG = logging.getLogger(__name__)
routes = APIRouter(include_in_schema=False)


class Clicks:
    """Takes what Slack posts, for one site.

    Raises:
        Stop: a package is missing.
    """

    def __init__(self, settings: SlackAppSettings) -> None:
        if settings.people and find_spec("aiohttp") is None:
            raise Stop("notify.slack needs aiohttp: pip install 'relight[http]'")
        self._settings = settings
        self._seen: OrderedDict[str, float] = OrderedDict()
        self._busy = 0

    async def take(self, desk: Desk, request: Request) -> BackgroundTask | None:
        """Check a request; what is left to do once Slack has its answer.

        Raises:
            NotThere: the site has no such app.
            Stranger: it is not proven to come from Slack just now.
            BadAsk: it is nothing that Slack would send us.
            Unreachable: it cannot be taken now.
        """
        if not self._settings.people:
            raise NotThere("notify.slack lists nobody here")
        body, proof = await _body(request), request.headers.get("x-slack-signature", "")
        await self._check(desk, request, body, proof)
        said = _said(request, body)
        click = click_of(said)
        if click is None:
            return None  # such as the link: Slack tells of it too
        if not below(said.response_url, self._settings.hooks):
            raise BadAsk(f"its response_url is not below {self._settings.hooks} (notify.slack.hooks)")
        if self._busy >= MOST_AT_ONCE:
            raise Unreachable("too many clicks at once: click again")
        if self._again(proof, desk.now().timestamp()):
            return None  # Slack repeats what it got no answer to, and so may whoever overheard it
        self._busy += 1
        return BackgroundTask(self._serve, desk, click, said)

    async def _check(self, desk: Desk, request: Request, body: bytes, proof: str) -> None:
        try:
            secret = await asyncio.to_thread(self._settings.signing_secret)
        except ConfigError as error:
            _LOG.error("notify.slack: %s", error)
            raise Unreachable("clicks cannot be checked now; the console's log says why") from error
        if wrong := unproven(secret, request.headers.get("x-slack-request-timestamp", ""), proof, body, desk.now()):
            _LOG.warning("not taken as Slack's: %s", wrong)
            raise Stranger(f"this is not proven to come from Slack: {wrong}")

    def _again(self, proof: str, now: float) -> bool:
        """True where this very request was taken before. What is older than a proof lasts is forgotten."""
        while self._seen and (len(self._seen) > MOST_SEEN or now - next(iter(self._seen.values())) > _REMEMBERED_S):
            self._seen.popitem(last=False)
        known = proof in self._seen
        self._seen.setdefault(proof, now)
        return known

    async def _serve(self, desk: Desk, click: Click, said: Interaction) -> None:
        try:
            async with asyncio.timeout(WITHIN_S):
                answer = await self._decided(desk, click, said)
                await tell(said.response_url, answer)
        except TimeoutError:
            _LOG.warning("a click in Slack on %s was not answered within %d s", click.subject, WITHIN_S)
        finally:
            self._busy -= 1

    async def _decided(self, desk: Desk, click: Click, said: Interaction) -> dict[str, Any]:
        """What Slack is told in the end."""
        link = f"{desk.settings.console.root}/incidents/{click.subject}"
        person = self._settings.people.get(click.account)
        if person is None:
            _LOG.warning("a click in Slack by %s, who is not listed in notify.slack.people", click.account)
            return ephemeral(
                f"Nothing was decided: your Slack account ({click.account}) is nobody whom this site lists "
                f"(notify.slack.people). Decide in the console:\n{link}"
            )
        who = Identity(name=person.name, role=person.role, way="slack")
        word = "approved" if click.approve else "rejected"
        try:
            if click.approve:
                await self._check_rights(desk, who, click)
            reason = " ".join(filter(None, (click.reason, f"(by Slack account {click.account})")))
            ask = DecisionAsk(approve=click.approve, digest=click.digest, reason=reason, once=click.once)
            answer = (await desk.decisions.decide(who, click.subject, ask)).answer
        except WebError as error:
            told = f"{error}\n{link}"
        except LedgerError:
            told = f"Nothing was decided: the ledger's database does not answer. Click again in a moment.\n{link}"
        else:
            told = f"{word.capitalize()} by {who.name} in Slack: {answer}"
        if await _waits(desk, who, click):
            return ephemeral(told)
        return settled(said.message, told)

    async def _check_rights(self, desk: Desk, who: Identity, click: Click) -> None:
        """Refuse what this site lets nobody approve by a click. The digest names the very plan that is looked at."""
        plan = (await desk.reading.incident(who, click.subject)).plan
        if plan is None or plan.digest != click.digest:
            new = f"its digest is {plan.short_digest} now, not {click.digest[:8]}" if plan else "there is none now"
            raise Overtaken(f"the plan has changed since you looked: {new}. Nothing was decided; look at the new plan.")
        if missing := ", ".join(sorted(set(plan.rights) - set(self._settings.may))):
            raise Refused(f"nobody approves this by a click here ({missing}: notify.slack.may). Decide in the console:")


@routes.post(PATH)
async def interaction(request: Request) -> Response:
    """Somebody used a message of ours in Slack."""
    clicks: Clicks = request.app.state.clicks
    return Response(background=await clicks.take(desk_of(request), request))


def below(url: str, root: str) -> bool:
    """True for an address of exactly this scheme, host and port."""
    try:
        parts, own = urlsplit(url), urlsplit(root)
    except ValueError:
        return False
    return url.isascii() and url.isprintable() and (parts.scheme, parts.netloc) == (own.scheme, own.netloc)


async def _body(request: Request) -> bytes:
    try:
        return await request.body()
    except ClientDisconnect:
        raise BadAsk("the request is too long, or broke off") from None


def _said(request: Request, body: bytes) -> Interaction:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != FORM:
        raise BadAsk(f"content-type {kind[:60] or 'none'}; accepted: {FORM}")
    try:
        form = parse_qs(body.decode("ascii"), strict_parsing=True, max_num_fields=4)
        said = Interaction.model_validate(json.loads(form["payload"][0]))
    except (ValueError, KeyError, RecursionError, ValidationError) as error:
        raise BadAsk(f"no payload of Slack's that can be read ({type(error).__name__})") from None
    if said.type != BLOCK_ACTIONS:
        raise BadAsk(f"type {said.type[:60]!r}; accepted: {BLOCK_ACTIONS}")
    return said


async def _waits(desk: Desk, who: Identity, click: Click) -> bool:
    """Whether this very plan waits for people still; True also where that cannot be told now."""
    try:
        page = await desk.reading.incident(who, click.subject)
    except (WebError, LedgerError):
        return True
    plan, approval = page.plan, page.approval
    return plan is not None and plan.digest == click.digest and approval is not None and approval.waiting
