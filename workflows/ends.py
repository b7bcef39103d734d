"""How a workflow comes to its end: work that a person may end, a last word that is written all the same."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

with workflow.unsafe.imports_passed_through():
    from relight.domain.base import clip
    from relight.workflows.options import MAX_REASON

T = TypeVar("T")


async def unless(stop: Callable[[], Exception | None], work: Coroutine[Any, Any, T]) -> T:
    """Wait for the work; where there is something to stop for, before or after its end, raise that instead."""
    task = asyncio.create_task(work)
    await workflow.wait_condition(lambda: task.done() or stop() is not None)
    if task.done():
        await task  # its own error comes first
    else:
        task.cancel()
    if end := stop():
        raise end
    return task.result()


async def to_its_end(work: Coroutine[Any, Any, Any]) -> None:
    """Shielded and awaited again: a workflow cancelled just now still writes its end to the ledger."""
    task = asyncio.create_task(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await task


def said(error: ActivityError) -> str:
    """Which activity failed, and with what."""
    cause = error.cause
    text = cause.message if isinstance(cause, ApplicationError) else str(cause or error)
    return clip(f"{error.activity_type}: {text}", MAX_REASON)
