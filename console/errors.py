"""How a command ends when it cannot do what it was asked: one or two clear lines, and a status.

0 ok
1 failed
2 usage        (click's own)
3 refused      the thing exists, and may not be done (any more, or by you)
4 not found
"""

import functools
from collections.abc import Callable
from typing import IO, Any, ParamSpec, TypeVar

import click

from relight.console.text import clean

P = ParamSpec("P")
R = TypeVar("R")


class Stop(click.ClickException):
    """Failed. The first line says what, the others what to do."""

    exit_code = 1

    def show(self, file: IO[Any] | None = None) -> None:
        """Print to standard error, whatever the text came from."""
        first, *rest = self.message.splitlines() or [""]
        click.echo(f"relight: {clean(first)}", file=file, err=file is None)
        for line in rest:
            click.echo(f"  {clean(line)}", file=file, err=file is None)


class RefusedStop(Stop):
    """It exists, and this may not be done to it, now or by this person."""

    exit_code = 3


class NotFoundStop(Stop):
    """There is no such thing."""

    exit_code = 4


def plainly(function: Callable[P, R]) -> Callable[P, R]:
    """Let a command end with lines for a person, never with a traceback."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except Exception as error:
            raise explained(error) from error

    return wrapped


def explained(error: Exception) -> Stop:
    """The error as a person can use it."""
    from relight.clients.ledger import LedgerError
    from relight.clients.slurm import SlurmError
    from relight.clients.ways import WayError
    from relight.config.settings import ConfigError

    if isinstance(error, ConfigError | WayError):
        return Stop(str(error))
    if isinstance(error, LedgerError):
        return Stop(f"ledger: {error}")
    if isinstance(error, SlurmError):
        return Stop(f"Slurm: {error}")
    if isinstance(error, OSError):
        return Stop(f"{error.filename or 'operating system'}: {error.strerror or error}")
    return Stop(
        f"unexpected {type(error).__name__}: {str(error)[:300]} ({_place(error)})\n"
        "This is a fault in Relight; `relight doctor` may show what it stumbled over.",
    )


def _place(error: Exception) -> str:
    trace = error.__traceback__
    if trace is None:
        return "place unknown"
    while trace.tb_next:
        trace = trace.tb_next
    code = trace.tb_frame.f_code
    return f"{code.co_filename.rsplit('/', 1)[-1]}:{trace.tb_lineno}"
