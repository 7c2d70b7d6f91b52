"""HTML out of text: whatever is not `Markup` is escaped."""

import html
import json
from typing import Any


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Attribute = str | int | float | bool | None
VOID = frozenset({"img", "link", "meta"})


def escaped(text: str) -> Markup:
    return text if isinstance(text, Markup) else Markup(html.escape(text))


def joined(*parts: str) -> Markup:
    return Markup("".join(map(escaped, parts)))


def element(name: str, /, *children: str, **attributes: Attribute) -> Markup:
    """`element("th", "rmse", scope="col")`; children that are not `Markup` are escaped.

    An attribute's underscores become hyphens (`class_` is class), True gives a bare attribute,
    False and None none.
    """
    written = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in VOID:
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{joined(*children)}</{name}>")


def json_script(content: Any, **attributes: Attribute) -> Markup:
    """Data for a script of the page. No `<` is left in it, so it can neither end nor comment out
    the element that holds it; numbers must be finite."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return element("script", Markup(text), type="application/json", **attributes)


def _attribute(name: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    name = name.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{html.escape(str(value))}"'
