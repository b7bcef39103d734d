"""What `relight release` and `relight keep` do: find the node's care, say the word, tell what became of it."""

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from relight.config.settings import Settings
from relight.console.decide import asked, say, sign
from relight.console.errors import RefusedStop, Stop
from relight.console.signer import person, signing_key

if TYPE_CHECKING:
    from temporalio.client import Client

    from relight.domain.base import Value
    from relight.workflows.care_story import CareStatus


async def status_of(client: "Client", settings: Settings, node: str) -> "CareStatus":
    """Where the node's care stands.

    Raises:
        NotFoundStop: when it never was in care.
        RefusedStop: when its care is over.
        Stop: when nobody answers.
    """
    from relight.domain.care import care_workflow_id
    from relight.workflows.care_story import CareStatus

    handle = client.get_workflow_handle(care_workflow_id(settings.cluster, node))
    nobody = f"node {node} is not in Relight's care"
    found = await asked(handle, "status", CareStatus, f"node {node}", nobody)
    if found.outcome is not None:
        raise RefusedStop(
            f"node {node} is no longer in Relight's care: {found.outcome} ({found.reason})\n"
            f"Its story: relight nodes {node}"
        )
    return found


async def release(
    client: "Client", settings: Settings, status: "CareStatus", *, reason: str, key: Path | None, at: datetime
) -> str:
    """Say, signed, that the node is repaired; returns the answer.

    Raises:
        RefusedStop: when it did not count, or this person cannot sign.
        Stop: when no answer came.
    """
    from relight.workflows.care_words import ReleaseSay

    if status.release is None:
        raise Stop(f"the care of {status.node} has only just begun; try again")
    signer = signing_key(settings, status.release, key)
    word = sign(signer, status.release, approved=True, reason=reason, at=at)
    return await _say(client, status, "release", ReleaseSay(signed=word), once=word.nonce)


async def keep(client: "Client", status: "CareStatus", reason: str) -> str:
    """Say that the node stays out; needs no key. Errors are those of `release`."""
    from relight.workflows.care_words import KeepSay

    return await _say(client, status, "keep", KeepSay(by=person(), reason=reason))


async def _say(client: "Client", status: "CareStatus", update: str, word: "Value", *, once: str = "") -> str:
    handle = client.get_workflow_handle(status.workflow_id, run_id=status.run_id)
    whose, story = f"the care of {status.node}", f"relight nodes {status.node}"
    return await say(handle, update, word, once=once, whose=whose, story=story)
