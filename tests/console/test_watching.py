"""`--watch`: the same thing again and again, through a ledger that goes away and comes back."""

import io
from collections.abc import Callable, Iterator

import pytest
from click.testing import Result
from rich.console import Console

from relight.clients.ledger import LedgerUnavailableError
from relight.console import watching
from relight.console.watching import shown

Relight = Callable[..., Result]


class Screen:
    """What stands on it after each round; after the last look somebody presses Ctrl-C."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, terminal: bool) -> None:
        self.file = io.StringIO()
        console = Console(file=self.file, width=60, force_terminal=terminal, color_system=None)
        monkeypatch.setattr("relight.console.output.screen", lambda: console)
        monkeypatch.setattr(watching, "EVERY_S", 0.0)

    async def watch(self, *looks: str | Exception) -> str:
        """Watch what the looks tell."""
        told: Iterator[str | Exception] = iter(looks)

        async def draw(console: Console) -> None:
            look = next(told, None)
            if look is None:
                raise KeyboardInterrupt
            if isinstance(look, Exception):
                raise look
            console.print(look)

        with pytest.raises(KeyboardInterrupt):
            await shown(draw, watch=True)
        return self.file.getvalue()


@pytest.mark.parametrize("terminal", [False, True])
async def test_what_was_last_seen_stays_while_the_ledger_is_away(monkeypatch: pytest.MonkeyPatch, terminal: bool):
    """With the reason below it; once it is back, that is gone."""
    away = LedgerUnavailableError("the database does not answer")
    told = await Screen(monkeypatch, terminal=terminal).watch("1 open", away, "0 open")
    assert told.index("1 open") < told.rindex("1 open") < told.index("not read since") < told.index("0 open")
    assert "the database does not answer" in told
    assert "not read since" not in told[told.index("0 open") :]


async def test_what_cannot_be_read_at_first_is_an_error(monkeypatch: pytest.MonkeyPatch):
    """There is nothing that could stay."""

    async def draw(_console: Console) -> None:
        raise LedgerUnavailableError("gone")

    Screen(monkeypatch, terminal=False)
    with pytest.raises(LedgerUnavailableError):
        await shown(draw, watch=True)


@pytest.mark.parametrize("words", [("incidents",), ("show", "i1"), ("why", "7"), ("nodes",), ("status",)])
def test_watching_is_for_people(relight: Relight, words: tuple[str, ...]):
    """Programs ask again themselves."""
    found = relight(*words, "--watch", "-o", "json")
    assert (found.exit_code, "leave out --output json" in found.output) == (2, True)
