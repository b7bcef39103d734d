"""A click in Slack: what proves that Slack sent it, what it says, and the buttons that are clicked. Pure.

The proof: docs.slack.dev, "Verifying requests from Slack" (version v0). The payload: "block_actions payload".
"""

import hashlib
import hmac
import re
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from pydantic import Field

from relight.domain.base import Value, clip, short_hash
from relight.domain.notices import words

LASTS = timedelta(minutes=5)
"""How far the time of a request may be from now, either way: what Slack advises."""
BLOCK_ACTIONS = "block_actions"
APPROVE, REJECT = "relight_approve", "relight_reject"
"""The buttons' `action_id`."""
REASON = "relight_reason"
"""The reason's field: its `block_id` and its `action_id`."""
MOST_REASON = 500
_VALUE = re.compile(r"([a-z0-9]{1,64}) ([0-9a-f]{64})")
_SECONDS = re.compile(r"[0-9]{1,12}")
_KEPT = ("header", "section", "context")
"""Blocks of a message that stay when its buttons go."""


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """What `X-Slack-Signature` must be."""
    signed = f"v0:{timestamp}:".encode(errors="backslashreplace") + body
    return f"v0={hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()}"


def unproven(secret: str, timestamp: str, said: str, body: bytes, now: datetime) -> str:
    """Why a request is not proven to come from Slack just now; empty where it is.

    Args:
        secret: the app's signing secret.
        timestamp: `X-Slack-Request-Timestamp`.
        said: `X-Slack-Signature`.
        body: as it was sent.
        now: the time.
    """
    if not hmac.compare_digest(signature(secret, timestamp, body).encode(), said.encode(errors="backslashreplace")):
        return "its signature is not of this app's signing secret"
    at = int(timestamp) if _SECONDS.fullmatch(timestamp) else 0
    return "" if abs(now.timestamp() - at) <= LASTS.total_seconds() else "it was signed more than five minutes ago"


class _User(Value):
    id: str = Field(pattern=r"^[A-Z0-9]{1,40}$")


class _Action(Value):
    action_id: str = ""
    value: str = Field(default="", max_length=2000)


class _Message(Value):
    ts: str = ""
    text: str = ""
    blocks: tuple[dict[str, Any], ...] = ()


class _Field(Value):
    value: str | None = None


class _State(Value):
    values: dict[str, dict[str, _Field]] = {}


class Interaction(Value):
    """What Slack posts when somebody uses a message of ours; other fields are not read."""

    type: str
    user: _User | None = None
    actions: tuple[_Action, ...] = ()
    response_url: str = ""
    message: _Message = _Message()
    state: _State = _State()


class Click(NamedTuple):
    """A click on one of our buttons that decide."""

    account: str
    """The Slack user's id."""
    approve: bool
    subject: str
    """The incident."""
    digest: str
    """Of the plan that the message showed."""
    reason: str
    message: str
    """The message's `ts`."""

    @property
    def once(self) -> str:
        """The same for the same word on the same message: a double click, and a request that comes again."""
        return short_hash("\n".join(map(str, self)), 32)


def click_of(said: Interaction) -> Click | None:
    """The click; None where it is on nothing of ours that decides, such as the link."""
    action = said.actions[0] if said.actions else _Action()
    value = _VALUE.fullmatch(action.value)
    if said.user is None or action.action_id not in {APPROVE, REJECT} or value is None:
        return None
    field = said.state.values.get(REASON, {}).get(REASON, _Field())
    return Click(
        account=said.user.id,
        approve=action.action_id == APPROVE,
        subject=value[1],
        digest=value[2],
        reason=words(field.value or "", MOST_REASON),
        message=said.message.ts,
    )


def escaped(text: str) -> str:
    """Text for where Slack reads markup."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def reason_field() -> dict[str, Any]:
    """The block in which who decides can say why."""
    field = {"type": "plain_text_input", "action_id": REASON, "max_length": MOST_REASON}
    return {"type": "input", "block_id": REASON, "optional": True, "label": _plain("Reason"), "element": field}


def buttons(subject: str, digest: str, what: str) -> list[dict[str, Any]]:
    """Those that decide; each asks again.

    Args:
        subject: the incident.
        digest: of its plan, all of it.
        what: the plan in words.
    """
    value, plan = f"{subject} {digest}", f"(plan {digest[:8]})"
    approve = _button("Approve", APPROVE, value, "primary", f"{clip(what, 250)} {plan}")
    return [approve, _button("Reject", REJECT, value, "danger", f"Nothing is done then, and {subject} ends. {plan}")]


def _button(text: str, action_id: str, value: str, style: str, asks: str) -> dict[str, Any]:
    # Slack's limits: 75 characters of a button, 100, 300 and 30 of a confirmation's title, text and buttons.
    confirm = {
        "title": _plain(f"{text} this plan?"),
        "text": _plain(clip(asks, 300)),
        "confirm": _plain(text),
        "deny": _plain("Back"),
        "style": style,
    }
    button = {"type": "button", "text": _plain(text), "action_id": action_id, "value": value, "style": style}
    return {**button, "confirm": confirm}


def _plain(text: str) -> dict[str, Any]:
    return {"type": "plain_text", "text": text, "emoji": False}


def settled(message: _Message, said: str) -> dict[str, Any]:
    """The message without what decides, and with what became of it."""
    blocks = [kept for block in message.blocks if (kept := _without_buttons(block))][:49]
    told = {"type": "context", "elements": [_plain(clip(said, 2000))]}
    return {"replace_original": True, "text": clip(message.text, 3000), "blocks": [*blocks, told]}


def _without_buttons(block: dict[str, Any]) -> dict[str, Any] | None:
    if block.get("type") != "actions":
        return block if block.get("type") in _KEPT else None
    links = [each for each in block.get("elements", ()) if isinstance(each, dict) and each.get("url")]
    return {"type": "actions", "elements": links} if links else None
