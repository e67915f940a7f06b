"""Build HTML from values that are not trusted. Every text is escaped unless it is ``Markup``."""

import html
from collections.abc import Iterable
from typing import Final, TypeAlias

from riffle_spark.printable import LINE_BREAKS, escape_unprintable

_VOID: Final = frozenset({"br", "input", "meta"})
"""Elements without content and without an end tag."""
_UNSAFE_IN_SCRIPT: Final = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}


class Markup(str):
    """Text that is HTML already. Only this module and constants of the page make it."""

    __slots__ = ()


Part: TypeAlias = str | Iterable["Part"]
"""Text, markup, or several of them."""


def join_parts(*parts: Part) -> Markup:
    """Return the parts in their order as markup. Text is escaped, and control characters become visible escapes."""
    return Markup("".join(map(_escaped, parts)))


def _escaped(part: Part) -> str:
    if isinstance(part, Markup):
        return part
    if isinstance(part, str):
        return html.escape(escape_unprintable(part, LINE_BREAKS))
    return join_parts(*part)


def element(name: str, /, *parts: Part, **attributes: str | int | float | None) -> Markup:
    """Return an element with its attributes and content.

    ``name`` and the names of attributes are trusted. In a name of an attribute, a trailing ``_`` is dropped, and other
    ``_`` become ``-``. An attribute with the value ``None`` is left out.

    >>> element("td", "a < b", class_="text", data_row=1)
    '<td class="text" data-row="1">a &lt; b</td>'
    """
    shown = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_escaped(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{shown}>" if name in _VOID else f"<{name}{shown}>{join_parts(*parts)}</{name}>")


def escape_json(text: str) -> Markup:
    r"""Return JSON for a ``script`` element: no text in it ends the element or starts another one.

    >>> escape_json('"</script>"')
    '"\\u003c/script\\u003e"'
    """
    return Markup(text.translate(_UNSAFE_IN_SCRIPT))
