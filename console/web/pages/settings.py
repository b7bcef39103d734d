"""Settings in force: each value, and where it comes from."""

from collections.abc import Mapping

from relight.console.web.look import Html, join, tag
from relight.console.web.look_parts import card, cell, empty, facts, head, notice, search, table
from relight.console.web.pages.asked import Asked, View
from relight.console.web.read_values import SettingRow, SettingsPage


async def view(asked: Asked) -> View:
    """The page."""
    return View("Settings in force", (show(await asked.desk.reading.settings(asked.who), asked.query),))


def show(page: SettingsPage, query: Mapping[str, str]) -> Html:
    """The page; `q` leaves those whose key or value holds it."""
    word = query.get("q", "").strip()[:200]
    rows = [row for row in page.rows if word.lower() in f"{row.key} {row.value} {row.origin}".lower()]
    pairs = [
        ("Cluster", page.cluster),
        ("Mode", page.mode),
        ("Policy in force", page.policy_version or "not told by any worker"),
        (
            "May approve",
            [tag("div", each.name, tag("span", f" {', '.join(each.may)}", class_="soft")) for each in page.approvers]
            or "who can read the site's approval key",
        ),
        ("Approvals needed", ", ".join(f"{right} {number}" for right, number in page.needed.items())),
    ]
    line = search("/settings", word, "Key, value or where it comes from")
    headings = (("Key", ""), ("Value", ""), ("From", ""))
    listed = table(headings, (_row(row) for row in rows), "Settings") if rows else empty("No setting fits", fine=False)
    told = [notice("bad", f"The settings file is refused: {page.file_problem}")] if page.file_problem else []
    told += [notice("warn", note) for note in page.notes]
    return join(
        head("Settings in force"),
        *told,
        card("This cluster", facts(pairs), class_="part"),
        tag("div", line, listed, class_="part"),
    )


def _row(row: SettingRow) -> list[Html]:
    changed = row.origin != "default"
    return [
        cell(tag("span", row.key, class_="mono strong" if changed else "mono")),
        cell(tag("span", str(row.value), class_="mono")),
        cell(tag("span", row.origin, class_=None if changed else "soft")),
    ]
