"""HTML out of text: whatever is not `Markup` is escaped."""

import html


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


def _attribute(name: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    name = name.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{html.escape(str(value))}"'
