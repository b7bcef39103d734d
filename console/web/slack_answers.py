"""What Slack is told about a click: posted to its `response_url`, which the caller has checked."""

import asyncio
import json
import logging
from datetime import timedelta
from typing import Any

from relight.clients.notices import NoticeNotSentError, Wire
from relight.domain.base import clip
from relight.domain.notices_slack import escaped

LONGEST_PAUSE = timedelta(seconds=30)
"""After a 429. What Slack wants us to wait for longer is not told by us: the ledger's notice in the thread tells it."""
_TRIES = 3
_LOG = logging.getLogger(__name__)


def ephemeral(text: str) -> dict[str, Any]:
    """For who clicked alone; the message stays as it is."""
    return {"response_type": "ephemeral", "replace_original": False, "text": escaped(clip(text, 2000))}


async def tell(url: str, answer: dict[str, Any]) -> None:
    """Post it, a few times where Slack asks for that. A failure is logged: what was decided stays decided."""
    from relight.clients.notices_http import post

    body, headers = json.dumps(answer).encode(), {"Content-Type": "application/json; charset=utf-8"}
    for left in reversed(range(_TRIES)):
        try:
            got = await post(url, whose="Slack", body=body, headers=headers, wire=Wire())
        except NoticeNotSentError as error:
            if not left or error.again is None or error.again > LONGEST_PAUSE:
                _LOG.warning("what became of a click could not be told: %s", error)
                return
            await asyncio.sleep(error.again.total_seconds())
        else:
            if not got.good:
                _LOG.warning("what became of a click could not be told: Slack says %s", got.said)
            return
