"""Slack: an incoming webhook, or a bot's `chat.postMessage`, which alone can thread. Blocks are Block Kit's.

What comes from logs stands in `plain_text` objects, which Slack does not read as markup; where it does (`text`), `&`,
`<` and `>` are written as Slack asks (docs.slack.dev, "Formatting text with mrkdwn"): no log mentions or links.
"""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from relight.clients.notices import Frame, NoticeNotAllowedError, NoticeNotSentError, NoticeRefusedError, Receipt, Wire
from relight.clients.notices_http import Answer, post
from relight.domain.base import clip
from relight.domain.notices import Fact, Severity, at_least
from relight.domain.notices_channel import Message
from relight.domain.notices_slack import buttons, escaped, reason_field

# Slack's own limits (docs.slack.dev, Block Kit: blocks and block elements).
_MOST_BLOCKS = 50
_HEADER = 150
_SECTION = 3000
_TEXT = 3000
_SHOWN = 40
"""Lines of a digest."""
_OUTAGES = frozenset(
    {"fatal_error", "internal_error", "ratelimited", "request_timeout", "service_unavailable", "team_added_to_org"}
)
_NOT_THIS = frozenset(
    {
        "invalid_arguments",
        "invalid_attachments",
        "invalid_blocks",
        "invalid_blocks_format",
        "invalid_payload",
        "invalid_thread_ts",
        "message_limit_exceeded",
        "msg_blocks_too_long",
        "msg_too_long",
        "no_text",
        "thread_locked",
        "thread_not_found",
        "too_many_attachments",
    }
)
"""Answers about the message, not about us."""


class Target(NamedTuple):
    """Where in Slack."""

    secret: str
    """An incoming webhook's address, or a bot's token where there is a channel."""
    channel: str = ""
    root: str = "https://slack.com/api"
    wire: Wire = Wire()
    buttons: bool = False
    """Whether people decide there."""


class SlackChannel:
    """Implements `NoticeChannel`."""

    def __init__(self, target: Target, frame: Frame) -> None:
        """Bind to a place in Slack."""
        self._to = target
        self._frame = frame

    async def send(self, message: Message, *, plain: bool = False) -> Receipt:
        """Post it; in its thread where there is a bot and the thread is known."""
        url, to = self._to.secret, self._to
        body = plainly(message, self._frame) if plain else written(message, self._frame, decide=to.buttons)
        headers = {"Content-Type": "application/json; charset=utf-8"}
        if to.channel:
            url = f"{to.root}/chat.postMessage"
            headers["Authorization"] = f"Bearer {to.secret}"
            body["channel"] = to.channel
            if message.thread and not plain:
                body["thread_ts"] = message.thread
                # Nobody looks into a thread that is called into it.
                body["reply_broadcast"] = at_least(message.severity, Severity.WARNING)
        sent = json.dumps(body).encode()
        answer = await post(url, whose="Slack", body=sent, headers=headers, wire=to.wire)
        return _of_bot(answer, to.channel) if to.channel else _of_webhook(answer)


def _of_webhook(answer: Answer) -> Receipt:
    if answer.good:
        return Receipt("Slack took it (incoming webhook: no threads)")
    said = answer.body.strip()
    if said in _NOT_THIS or answer.status == 413:  # noqa: PLR2004
        raise NoticeRefusedError(f"Slack does not take the message ({answer.said})")
    raise NoticeNotAllowedError(f"Slack does not take anything from this webhook ({answer.said})")


def _of_bot(answer: Answer, channel: str) -> Receipt:
    try:
        told = json.loads(answer.body)
    except ValueError:
        told = None
    if not isinstance(told, dict):
        raise NoticeNotSentError(f"Slack answers with something else than its API does ({answer.said})")
    if told.get("ok") is True:
        return Receipt(f"Slack posted it in {told.get('channel', channel)}", str(told.get("ts", "")))
    error = str(told.get("error", "no error named"))
    if error in _OUTAGES:
        raise NoticeNotSentError(f"Slack cannot post it now ({error})")
    if error in _NOT_THIS:
        raise NoticeRefusedError(f"Slack does not take the message ({error})")
    raise NoticeNotAllowedError(f"Slack does not let us post in {channel}: {error}")


# --- Block Kit --------------------------------------------------------------------------------------------------------


def plainly(message: Message, frame: Frame) -> dict[str, Any]:
    """The message as one line, without blocks."""
    return {"text": clip(escaped(f"[{frame.cluster}] {message.title}"), 500), "mrkdwn": False, **_QUIETLY}


def written(message: Message, frame: Frame, *, decide: bool = False) -> dict[str, Any]:
    """The message with its blocks; `text` is what phones show before it is opened.

    Args:
        message: what is told.
        frame: where it comes from.
        decide: whether a plan that waits gets the buttons that decide.
    """
    title = f"[{frame.cluster}] {message.title}"
    blocks: list[dict[str, Any]] = [{"type": "header", "text": _plain(title, _HEADER)}]
    shown: Sequence[Fact] = message.facts[:_SHOWN]
    blocks += [{"type": "section", "text": _plain(f"{fact.name}: {fact.text}", _SECTION)} for fact in shown]
    if len(message.facts) > len(shown):
        more = f"and {len(message.facts) - len(shown)} more: relight incidents, relight nodes"
        blocks.append({"type": "context", "elements": [_plain(more, _SECTION)]})
    notice, elements = message.notices[0], []
    if decide and not message.digest and notice.waits and notice.incident and notice.digest:
        what = next((fact.text for fact in message.facts if fact.name == "Plan"), message.title)
        blocks.append(reason_field())
        elements += buttons(notice.incident, notice.digest, what)
    if link := "" if message.digest else frame.link(notice.incident):
        elements.append({"type": "button", "text": _plain("Open", 75), "url": link, "action_id": "relight_open"})
    if elements:
        blocks.append({"type": "actions", "elements": elements})
    blocks.append({"type": "context", "elements": [_plain(_below(message), _SECTION)]})
    return {"text": clip(escaped(title), _TEXT), "blocks": blocks[:_MOST_BLOCKS], **_QUIETLY}


_QUIETLY = {"unfurl_links": False, "unfurl_media": False}
"""No page that a log names is fetched for a preview."""


def _below(message: Message) -> str:
    notice = message.notices[-1]
    named = f"incident {notice.incident}, " if notice.incident and not message.digest else ""
    return f"{named}{message.severity}, {notice.at:%Y-%m-%d %H:%M:%S} UTC"


def _plain(text: str, limit: int) -> dict[str, Any]:
    return {"type": "plain_text", "text": clip(text, limit), "emoji": False}
