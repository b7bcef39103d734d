"""PagerDuty, Events API v2: an alert for each incident, raised, added to and resolved under one `dedup_key`.

A repeated event changes nothing there: the key is PagerDuty's own de-duplication. A digest is an alert of its own,
resolved when all that it stands for is over.
"""

import json
from datetime import UTC
from typing import Any, NamedTuple

from relight.clients.notices import Frame, NoticeNotAllowedError, NoticeRefusedError, Receipt, Wire
from relight.clients.notices_http import post
from relight.domain.base import clip
from relight.domain.notices import words
from relight.domain.notices_channel import Message

# PagerDuty's own limits: 1,024 characters of a summary, 255 of a key, 512 KB of an event.
_SUMMARY = 1024
_KEY = 255
_SHOWN = 100


class Service(NamedTuple):
    """Whose alerts."""

    routing_key: str
    root: str = "https://events.pagerduty.com"
    wire: Wire = Wire()


class PagerDutyChannel:
    """Implements `NoticeChannel`."""

    def __init__(self, service: Service, frame: Frame) -> None:
        """Bind to a service's integration."""
        self._service = service
        self._frame = frame

    async def send(self, message: Message, *, plain: bool = False) -> Receipt:
        """Raise an alert, add to it, or resolve it; an end that resolves nothing is not sent."""
        key = message.thread or alert_key(message)
        if not message.resolves and all(notice.ends for notice in message.notices):
            return Receipt("nothing to resolve", key)
        event = self._event(message, key, plain=plain)
        sent = json.dumps({"routing_key": self._service.routing_key, **event}).encode()
        at = self._service
        headers = {"Content-Type": "application/json"}
        answer = await post(f"{at.root}/v2/enqueue", whose="PagerDuty", body=sent, headers=headers, wire=at.wire)
        if answer.good:
            return Receipt(f"PagerDuty took it ({event['event_action']}, dedup_key {key})", key)
        # 400 is said of a wrong routing key too.
        said = words(answer.body, 300).replace(self._service.routing_key, "...")
        if answer.status == 400 and "routing_key" not in said:  # noqa: PLR2004
            raise NoticeRefusedError(f"PagerDuty does not take the event: {said}")
        raise NoticeNotAllowedError(f"PagerDuty takes nothing from us (status {answer.status}): {said}")

    def _event(self, message: Message, key: str, *, plain: bool) -> dict[str, Any]:
        if message.resolves:
            return {"event_action": "resolve", "dedup_key": key}
        newest = message.notices[-1]
        payload: dict[str, Any] = {
            "summary": clip(f"[{self._frame.cluster}] {message.title}", _SUMMARY),
            "source": newest.node or self._frame.cluster,
            "severity": str(message.severity),
        }
        event: dict[str, Any] = {"event_action": "trigger", "dedup_key": key, "payload": payload, "client": "Relight"}
        if plain:
            return event
        payload["timestamp"] = newest.at.astimezone(UTC).isoformat()
        payload["group"] = self._frame.cluster
        payload["class"] = newest.topic.partition("/")[0] if "/" in newest.topic else "incident"
        payload["custom_details"] = {
            f"{number:02} {fact.name}": fact.text for number, fact in enumerate(message.facts[:_SHOWN], 1)
        }
        if link := self._frame.link("" if message.digest else newest.incident):
            event |= {"client_url": link, "links": [{"href": link, "text": "Relight: the incident"}]}
        return event


def alert_key(message: Message) -> str:
    """The key of an alert that is raised: the incident's id, or what else it is about; a digest's own."""
    first = message.notices[0]
    if message.digest:
        return clip(message.id, _KEY)
    return clip(first.topic if first.incident else f"{first.id.partition('/')[0]}/{first.topic}", _KEY)
