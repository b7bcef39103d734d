"""A site's own receiver: JSON by POST, signed with HMAC-SHA256. What is sent: docs/notifications.md.

The signature covers time and body, so that what was overheard cannot be sent again later:
`X-Relight-Signature: v1=<hex of HMAC-SHA256(key, "v1:" + timestamp + ":" + body)>`.
"""

import hashlib
import hmac
import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple

from relight.clients.notices import Frame, NoticeNotAllowedError, NoticeRefusedError, Receipt, Wire
from relight.clients.notices_http import post
from relight.domain.notices_channel import Message

VERSION = "v1"
_NOT_THIS = frozenset({400, 413, 415, 422})


class Receiver(NamedTuple):
    """Where it is sent."""

    url: str
    key: str
    wire: Wire = Wire()


class WebhookChannel:
    """Implements `NoticeChannel`."""

    def __init__(self, receiver: Receiver, frame: Frame, clock: Callable[[], datetime]) -> None:
        """Bind to a receiver."""
        self._to = receiver
        self._frame = frame
        self._clock = clock

    async def send(self, message: Message, *, plain: bool = False) -> Receipt:
        """Post it; `X-Relight-Id` is the same when it is sent again."""
        to, at = self._to, str(int(self._clock().timestamp()))
        body = json.dumps(as_json(message, self._frame, plain=plain)).encode()
        headers = {
            "Content-Type": "application/json",
            "X-Relight-Id": message.id,
            "X-Relight-Timestamp": at,
            "X-Relight-Signature": signature(to.key, at, body),
        }
        answer = await post(to.url, whose="the webhook", body=body, headers=headers, wire=to.wire)
        if answer.good:
            return Receipt(f"the webhook took it ({answer.said})", message.thread or message.id)
        if answer.status in _NOT_THIS:
            raise NoticeRefusedError(f"the webhook does not take the message ({answer.said})")
        raise NoticeNotAllowedError(f"the webhook takes nothing from us ({answer.said})")


def signature(key: str, timestamp: str, body: bytes) -> str:
    """What `X-Relight-Signature` must be."""
    signed = f"{VERSION}:{timestamp}:".encode() + body
    return f"{VERSION}={hmac.new(key.encode(), signed, hashlib.sha256).hexdigest()}"


def as_json(message: Message, frame: Frame, *, plain: bool = False) -> dict[str, Any]:
    """The body; `plain`: without the notices that it stands for."""
    body: dict[str, Any] = {
        "version": 1,
        "id": message.id,
        "cluster": frame.cluster,
        "title": message.title,
        "severity": str(message.severity),
        "digest": message.digest,
        "at": message.at.isoformat(),
    }
    if not plain:
        body["notices"] = [
            {**notice.model_dump(mode="json", exclude={"seldom", "if_told"}), "url": frame.link(notice.incident)}
            for notice in message.notices
        ]
    return body
