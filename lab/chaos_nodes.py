"""Puts nodes back to work behind the trials of the chaos harness, as an administrator does, and ends ended jobs."""

import asyncio
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress

from relight.lab.chaos_stack import ChaosStack
from relight.lab.chaos_trial import BROKEN
from relight.lab.processes import DaemonStartError
from relight.lab.users import USERS

EVERY_S = 2.0
_FAILS = (*BROKEN, DaemonStartError)


async def tend(stack: ChaosStack, held: Mapping[int, str], done: AbstractSet[str]) -> None:
    """Start nodes that lost their power, and resume those set aside that no trial holds; for ever."""
    starting: dict[str, asyncio.Task[None]] = {}
    async with asyncio.TaskGroup() as group:
        while True:
            await asyncio.sleep(EVERY_S)
            with suppress(*_FAILS):
                await asyncio.to_thread(_cancel_again, stack, done)
                status = await asyncio.to_thread(stack.cluster.status)
                for node, state in (status.nodes or {}).items():
                    if not status.processes.get(node):
                        if node not in starting or starting[node].done():
                            starting[node] = group.create_task(_start(stack, node))
                    elif _set_aside(state) and node not in held.values():
                        await asyncio.to_thread(_resume, stack, node)


def _cancel_again(stack: ChaosStack, done: AbstractSet[str]) -> None:
    listed = stack.cluster.run("squeue", "--noheader", "--states=PD,R", "--format=%A %j").stdout.splitlines()
    for job, name in (line.split() for line in listed):
        if name in done:
            stack.cluster.run("scancel", "--quiet", f"--name={name}", job, user=USERS.owner, check=False)


def _set_aside(state: str) -> bool:
    return state.startswith(("drained", "down")) and not state.endswith("*")


async def _start(stack: ChaosStack, node: str) -> None:
    with suppress(*_FAILS):
        await asyncio.to_thread(stack.cluster.start_node, node)
        if node in stack.agents_on:
            await asyncio.to_thread(stack.start_agent, node)


def _resume(stack: ChaosStack, node: str) -> None:
    # Not as root: as that the node wrapper comes, whose deeds are told from all others by it.
    stack.cluster.run("scontrol", "update", f"NodeName={node}", "State=RESUME", user=USERS.admin, check=False)
