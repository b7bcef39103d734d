"""What takes long is reckoned once for all who look."""

import asyncio

import pytest

from relight.console.web.pages.kept import Kept


async def test_all_who_ask_at_once_wait_for_one_answer() -> None:
    """Also where the first of them leaves."""
    kept, calls, go = Kept(), [], asyncio.Event()

    async def reckon() -> int:
        calls.append(1)
        await go.wait()
        return 7

    first, second = (asyncio.create_task(kept.get("x", reckon)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    go.set()
    assert await second == 7
    assert await kept.get("x", reckon) == 7
    assert len(calls) == 1


async def test_an_error_is_not_kept() -> None:
    """The next one who asks tries again."""
    kept, answers = Kept(), iter([OSError("away"), None])

    async def reckon() -> str:
        if error := next(answers):
            raise error
        return "there"

    with pytest.raises(OSError, match="away"):
        await kept.get("x", reckon)
    assert await kept.get("x", reckon) == "there"
