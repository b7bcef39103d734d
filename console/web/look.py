"""HTML in which nothing can be injected: what is not `Html` is cleaned and escaped, text and attributes alike. Pure."""

import html
from collections.abc import Iterable
from urllib.parse import quote, urlencode

from relight.console.text import clean

_VOID = frozenset({"br", "hr", "input", "meta"})
"""Elements without an end; those of SVG have one."""
_SAFE_SCHEMES = ("https://", "http://", "/", "#", "?")


class Html(str):
    """Text that is HTML already, made by `tag` alone."""

    __slots__ = ()


Child = str | int | float | Html | None | Iterable["Child"]
"""What may stand inside an element; None and empty text are left out."""
Attribute = str | int | float | bool | None


def escaped(text: str) -> Html:
    """Text from anywhere as HTML: one line, without control, reordering or escape characters."""
    return Html(html.escape(clean(text), quote=True))


def join(*children: Child, between: str = "") -> Html:
    """The children one after the other, each safe."""
    return Html(between.join(_each(children)))


def tag(name: str, /, *children: Child, **attributes: Attribute) -> Html:
    """An element.

    Args:
        name: such as `td`; ours, never from outside.
        children: what it holds.
        attributes: `class_` is `class`, `aria_label` is `aria-label`; None and False are left out, True has no value.
    """
    told = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _VOID:
        return Html(f"<{name}{told}>")
    return Html(f"<{name}{told}>{join(*children)}</{name}>")


def link(href: str, /, *children: Child, **attributes: Attribute) -> Html:
    """A link; text alone where the address is none that a click may follow (a script's, for example)."""
    if not href.startswith(_SAFE_SCHEMES):
        return tag("span", *children)
    return tag("a", *children, href=href, **attributes)


def path(*parts: str, **query: str | int | None) -> str:
    """An address of the console's own: `/incidents?state=open`; empty values are left out."""
    place = "/" + "/".join(quote(part, safe="") for part in parts)
    asked = urlencode({key: value for key, value in query.items() if value not in {None, ""}})
    return f"{place}?{asked}" if asked else place


def _each(children: Iterable[Child]) -> Iterable[str]:
    for child in children:
        if child is None:
            continue
        if isinstance(child, Html):
            yield child
        elif isinstance(child, str):
            yield escaped(child)
        elif isinstance(child, int | float):
            yield str(child)
        else:
            yield from _each(child)


def _attribute(key: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escaped(str(value))}"'
