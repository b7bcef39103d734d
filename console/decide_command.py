"""The commands `relight approve`, `relight reject` and `relight approvers`."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from relight.console.cli import complete_open, with_config, with_output
from relight.console.errors import RefusedStop, Stop, plainly

if TYPE_CHECKING:
    from relight.config.settings import Settings
    from relight.console.decide import Ready
    from relight.console.signer import Signer

F = TypeVar("F", bound=Callable[..., Any])
_PATH = click.Path(path_type=Path, dir_okay=False)


def _digest(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    if value is None:
        return None
    from relight.domain.plan import MIN_DIGEST_PREFIX

    digits = value.strip().lower()
    if len(digits) < MIN_DIGEST_PREFIX or set(digits) - set("0123456789abcdef"):
        raise click.BadParameter(f"{value!r}: give {MIN_DIGEST_PREFIX} or more hexadecimal digits of the plan's digest")
    return digits


def _deciding(function: F) -> F:
    """What `approve` and `reject` share."""
    function = click.option(
        "--key", type=_PATH, metavar="PATH", help="Your SSH key (Ed25519, private half); else ~/.ssh/id_ed25519."
    )(function)
    function = click.option("--digest", callback=_digest, help="Refuse if the plan is no longer this one.")(function)
    function = click.option("-y", "--yes", is_flag=True, help="Do not ask back.")(function)
    function = click.argument("id_", metavar="ID", shell_complete=complete_open)(function)
    return with_config(function)


@click.command()
@_deciding
@click.option("--reason", default="", help="Why; goes into the ledger.")
@plainly
def approve(config: Path | None, id_: str, *, key: Path | None, yes: bool, digest: str | None, reason: str) -> None:
    """Approve the plan of an incident that waits for people.

    ID is an incident's id, the beginning of one, a Slurm job id, or node/NAME. Signed with your own SSH key where the
    settings list approvers, else with the site's approval key: who can read that may approve.
    """
    _decide(config, id_, key, approved=True, yes=yes, digest=digest, reason=reason)


@click.command()
@_deciding
@click.option("--reason", required=True, help="Why; goes into the ledger.")
@plainly
def reject(config: Path | None, id_: str, *, key: Path | None, yes: bool, digest: str | None, reason: str) -> None:
    """Reject the plan of an incident that waits for people: nothing is done then.

    One rejection is enough, whatever has been approved before.
    """
    _decide(config, id_, key, approved=False, yes=yes, digest=digest, reason=reason)


def _decide(
    config: Path | None, id_: str, key: Path | None, *, approved: bool, yes: bool, digest: str | None, reason: str
) -> None:
    from relight.console import decide
    from relight.console.context import now, run, settings_from
    from relight.console.signer import signing_key

    if not approved and not reason.strip():
        raise click.UsageError("--reason must say why")

    async def work() -> str:
        settings = settings_from(config)
        ready = await _find(settings, id_)
        decide.check_digest(ready, digest)
        signer = signing_key(settings, ready.request, key)
        _print(ready, signer)
        if not yes:
            _ask(approved=approved)
        word = decide.sign(signer, ready.request, approved=approved, reason=reason.strip(), at=now())
        return await decide.send(ready, word)

    click.echo(run(work()))


async def _find(settings: "Settings", id_: str) -> "Ready":
    from relight.console import decide
    from relight.console.context import check_there, connected

    if id_.startswith(decide.OF_NODE):
        return await decide.ready_node(await connected(settings), settings, id_.removeprefix(decide.OF_NODE))
    try:
        check_there(settings)
    except Stop as why:
        client = await connected(settings)
        return await decide.ready(client, await decide.in_temporal(client, settings, id_, why))
    place = await decide.in_ledger(settings, id_)
    return await decide.ready(await connected(settings), place)


def _print(ready: "Ready", signer: "Signer") -> None:
    from relight.console.context import now
    from relight.console.output import Part, grid, joined, screen, words
    from relight.console.text import local, span

    request, approval = ready.request, ready.approval
    may = "who can read the site's approval key" if request.able == ("site",) else ", ".join(request.able)
    needs = joined([(approval.score, "bold"), (f"({', '.join(request.rights)}: {request.weight})", "dim")], " ")
    parts = [
        Part("Node" if request.subject.startswith("node/") else "Incident", (words(request.subject, "bold"),)),
        Part("Job" if not request.subject.startswith("node/") else "", (words(ready.title),)),
        Part("Plan", (words(request.what, "bold"), words(f"because {request.why}"))),
        Part("Digest", (words(request.digest[:12]),)),
        Part("Needs", (needs, words(f"may approve: {may or 'nobody by signature'}", "dim"))),
        Part("Until", (words(f"{local(request.until, now())} ({span(request.until - now())} left)"),)),
        Part("You are", (words(signer.told),)),
    ]
    if request.requested_by:
        parts.append(Part("Asked by", (words(f"{request.requested_by}, who may not approve it"),)))
    if request.deadline and ready.afterwards:
        known = f"until {local(request.deadline, now())} Slurm can requeue the attempt; after that only:"
        parts.append(Part("Later", (words(known), words(ready.afterwards))))
    screen().print(grid(part for part in parts if part.label))


def _ask(*, approved: bool) -> None:
    try:
        sure = click.confirm("Approve this plan?" if approved else "Reject this plan?", default=False)
    except click.Abort:
        raise Stop("nothing sent: not confirmed (answer y, or pass --yes)") from None
    if not sure:
        raise RefusedStop("nothing sent: you said no")


@click.command()
@with_config
@with_output
@plainly
def approvers(config: Path | None, output: str) -> None:
    """Say who may approve what, and how many people each action needs."""
    from relight.console import approvers as page
    from relight.console.context import settings_from
    from relight.console.output import print_json, screen

    found = page.collect(settings_from(config))
    if output == "json":
        print_json(page.as_json(found))
    else:
        page.tell(screen(), found)
