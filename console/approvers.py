"""`relight approvers`: who may approve what, and how many people each action needs."""

from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from relight.config.settings import Settings
from relight.console.output import words
from relight.console.signer import readers_of
from relight.console.text import count
from relight.domain import rights
from relight.domain.permits import Policy
from relight.domain.rights import WEIGHTS, Approver, Right, fingerprint


class Page(NamedTuple):
    """What the settings say."""

    people: tuple[Approver, ...]
    """Empty: the site's own key signs."""
    policy: Policy
    key: Path
    ruled: int
    """Rules of the policy that change how many are needed."""


def collect(settings: Settings) -> Page:
    """Read the settings."""
    ruled = sum(bool(rule.set.approvers) for rule in settings.policy.rules)
    return Page(settings.approvals.people, settings.policy, settings.approval_key, ruled)


def able(page: Page, right: Right) -> tuple[str, ...]:
    """The different people who may approve it."""
    return rights.able(page.people, (right,))


def as_json(page: Page) -> dict[str, Any]:
    """For other programs; keys are only ever added."""
    return {
        "approvers": [
            {
                "name": each.name,
                "key": each.key,
                "fingerprint": fingerprint(each.key),
                "may": list(each.may),
                "vouches_for": list(each.vouches_for),
                "owner_may": list(each.owner_may),
            }
            for each in page.people
        ],
        "site_key": None if page.people else str(page.key),
        "actions": {
            right: {"weight": WEIGHTS[right], "needed": page.policy.approvers_needed([right])} for right in Right
        },
        "rules": page.ruled,
    }


def tell(console: Console, page: Page) -> None:
    """Print it; what nobody can approve stands out."""
    if page.people:
        console.print(_people(page))
    else:
        console.print(words("Nobody is listed (approvals.approvers): the site's own key signs, as one person.", "bold"))
        console.print(words(f"{page.key}: {readers_of(page.key)}"))
    console.print()
    console.print(_actions(page))
    if page.ruled:
        console.print()
        console.print(words(f"{count(page.ruled, 'rule')} of the policy asks for other numbers: relight config show"))


def _table(*titles: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for title in titles:
        table.add_column(title, no_wrap=title == titles[0], overflow="fold")
    return table


def _people(page: Page) -> Table:
    table = _table("APPROVER", "MAY APPROVE", "KEY")
    for each in page.people:
        may = "everything" if set(each.may) == set(Right) else ", ".join(each.may)
        if each.vouches:
            may = f"vouches for {', '.join(each.vouches_for) or 'nobody listed'}: {may}"
            may += f"; for a job's user: {', '.join(each.owner_may)}" if each.owner_may else ""
        table.add_row(words(each.name, "bold"), words(may), words(fingerprint(each.key), "dim"))
    return table


def _actions(page: Page) -> Table:
    table = _table("ACTION", "WEIGHT", "NEEDS", "")
    for right in Right:
        needed = page.policy.approvers_needed([right])
        there = len(able(page, right)) if page.people else 1
        short = f"only {there} may approve it: nobody is asked, and it is never done" if there < needed else ""
        table.add_row(words(right), words(WEIGHTS[right]), words(count(needed, "approval")), words(short, "bold red"))
    return table
