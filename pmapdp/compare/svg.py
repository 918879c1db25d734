"""SVG as text: elements with escaped attributes, and a figure whose text keeps its size at any width.

Positions across are percentages and positions down are pixels. So a picture fills a wide and a narrow page without
scaling its text; only the curves, which stand in an inner picture of 1000 x 1000 units, are stretched.
"""

from html import escape


def element(name: str, *content: str, **attributes: object) -> str:
    """`<name attribute="value">content</name>`.

    Args:
        name: of the element.
        content: markup, as it is; text must be given through `text`.
        attributes: `stroke_width=2` becomes `stroke-width="2"`, and `class_` `class`; values are escaped.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"' for key, value in attributes.items()
    )
    return f"<{name}{written}>{''.join(content)}</{name}>"


def text(content: str, **attributes: object) -> str:
    """A piece of text; the content is escaped."""
    return element("text", escape(content), **attributes)


def percent(share: float) -> str:
    """A share from 0 to 1 as an SVG length."""
    return f"{100 * share:.3f}%"


def figure(identifier: str, title: str, height: int, *content: str) -> str:
    """A picture as wide as its place and `height` pixels high; `title` is what a screen reader says."""
    return element(
        "svg",
        element("title", escape(title), id=identifier),
        *content,
        role="img",
        aria_labelledby=identifier,
        width="100%",
        height=height,
    )


def stretched(*content: str) -> str:
    """Drawings in 1000 x 1000 units, stretched over the whole figure."""
    return element(
        "svg",
        *content,
        viewBox="0 0 1000 1000",
        preserveAspectRatio="none",
        width="100%",
        height="100%",
        overflow="visible",
    )
