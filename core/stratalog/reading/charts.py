"""Charts in SVG, for the report of a log directory and for the jobs of Spark.

A strip is a horizontal band with marks, such as one for each segment of a log. The position of a mark is a share of
the strip's width, from 0 to 1. Each kind of mark of a log has its own pattern: a chart can be read without colours.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

HEIGHT: Final = 18  # of a strip, in pixels
LEVELS: Final = 6  # kinds "level-0" to "level-5": amounts, from small to large
_THINNEST: Final = 0.002  # minimal width of a mark as a share of the strip's width; a thinner mark would be invisible

# The kinds of marks of a log: the active segment, local segments, segments on local disk and in the tier, and segments
# that are only in the tier.
_PATTERNS: Final = {
    "active": '<rect width="6" height="6" class="ground"/><path d="M0 3H6M3 0V6" class="line"/>',
    "local": '<rect width="6" height="6" class="ground"/>',
    "both": '<rect width="6" height="6" class="ground"/><circle cx="3" cy="3" r="1.4" class="dot"/>',
    "tier": '<rect width="6" height="6" class="ground"/><path d="M-1 7L7 -1M-1 1L1 -1M5 7L7 5" class="line"/>',
}
STYLE: Final = """
.chart{--ink:#1c2430;--soft:#5c6773;--ground:#eef1f4;--local:#2f6db3;--both:#2f8f5b;--tier:#c9791a;--active:#7a4fb5;
--contrast:#ffffff;--bar:#2f6db3;--bad:#b3261e}
.chart text{font:12px system-ui,-apple-system,"Segoe UI",sans-serif;fill:var(--ink)}
.chart text.head{font-size:18px;font-weight:600}.chart text.soft{fill:var(--soft)}.chart text.bad{fill:var(--bad)}
.chart text.end{text-anchor:end}.chart text.middle{text-anchor:middle}
.chart .strip{fill:var(--ground)}.chart .bar{fill:var(--bar)}.chart .tick{stroke:var(--soft)}
.chart .mark{stroke:var(--contrast);stroke-width:.6}
.p-local .ground{fill:var(--local)}.p-both .ground{fill:var(--both)}.p-tier .ground{fill:var(--tier)}
.p-active .ground{fill:var(--active)}.p-tier .line,.p-active .line{stroke:var(--contrast);stroke-width:1.2;fill:none}
.p-both .dot{fill:var(--contrast)}
.level-0{fill:#dce8f4}.level-1{fill:#c6dbef}.level-2{fill:#9ecae1}.level-3{fill:#6baed6}.level-4{fill:#3182bd}
.level-5{fill:#08519c}
@media (prefers-color-scheme:dark){.chart{--ink:#e6e9ed;--soft:#9aa5b1;--ground:#2a313a;--local:#6ea8e6;--both:#5fbf8c;
--tier:#e3a04d;--active:#b392e6;--contrast:#12161b;--bar:#6ea8e6;--bad:#ff8a80}
.level-0{fill:#1f3247}.level-1{fill:#24486b}.level-2{fill:#2d6496}.level-3{fill:#4a8bc4}.level-4{fill:#86b9e6}
.level-5{fill:#d6e9fa}}
"""
"""CSS of all charts, for a ``<style>`` element; light and dark."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A rectangle in a strip, from ``start`` to ``end``, which are shares of the strip's width from 0 to 1.

    ``kind`` determines pattern and colour: active, local, both, tier, or level-0 to level-5. ``title`` is the tooltip.
    """

    start: float
    end: float
    kind: str
    title: str = ""


def patterns() -> str:
    """Return the SVG ``<defs>`` with the patterns of all marks; a page with strips must contain them once."""
    elements = (
        f'<pattern id="pattern-{kind}" class="p-{kind}" width="6" height="6" patternUnits="userSpaceOnUse">{content}</pattern>'
        for kind, content in _PATTERNS.items()
    )
    return f"<defs>{''.join(elements)}</defs>"


def strip(marks: Iterable[Mark], *, place: str = "", height: int = HEIGHT, label: str = "") -> str:
    """Return a strip, a horizontal band with marks, as an ``<svg>`` element.

    Args:
        marks: the marks; parts below 0 or above 1 are not drawn. A very thin mark is drawn wider, to be visible.
        place: SVG attributes x, y and width as text, if the strip is part of another drawing; "" makes the strip as
            wide as its parent element.
        height: height of the strip in pixels.
        label: text for screen readers.
    """
    label_attributes = f' role="img" aria-label="{escape(label)}"' if label else ""
    outer = place or 'class="chart" width="100%"'
    parts = [f'<svg {outer} height="{height}"{label_attributes}><rect class="strip" width="100%" height="100%"/>']
    for mark in marks:
        start, end = max(mark.start, 0.0), min(max(mark.end, mark.start + _THINNEST), 1.0)
        start = min(start, 1.0 - _THINNEST)
        title = f"<title>{escape(mark.title)}</title>" if mark.title else ""
        fill = f'fill="url(#pattern-{mark.kind})"' if mark.kind in _PATTERNS else ""
        style = "mark" if fill else mark.kind
        parts.append(
            f'<rect class="{style}" {fill} x="{start:.3%}" width="{max(end - start, _THINNEST):.3%}" y="1" '
            f'height="{height - 2}">{title}</rect>'
        )
    return "".join([*parts, "</svg>"])


def swatch(kind: str) -> str:
    """Return a small ``<svg>`` element that shows one kind of mark of a log, for a legend.

    ``kind`` is active, local, both or tier. The page must contain the result of ``patterns``.
    """
    return (
        f'<svg class="chart swatch" width="22" height="12" aria-hidden="true"><rect class="mark" '
        f'fill="url(#pattern-{kind})" width="22" height="12"/></svg>'
    )


def text(x: float, y: float, content: str, kind: str = "", title: str = "") -> str:
    """Return a ``<text>`` element at the position (``x``, ``y``) in pixels; ``title`` is its tooltip.

    ``kind`` is a list of words, separated by spaces: head (large), soft (grey), bad (red), end (the text ends at
    ``x``), middle (the text is centred at ``x``). Without end and middle, the text begins at ``x``.
    """
    title_element = f"<title>{escape(title)}</title>" if title else ""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{title_element}{escape(content)}</text>'


def bar(x: float, y: float, width: float, height: float) -> str:
    """Return a ``<rect>`` element that draws a bar; all numbers are in pixels."""
    return f'<rect class="bar" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"/>'


def tick(x: float, y: float) -> str:
    """Return a ``<line>`` element that draws a tick of an axis, from (``x``, ``y``) 5 pixels down."""
    return f'<line class="tick" x1="{x:.1f}" y1="{y:.1f}" x2="{x:.1f}" y2="{y + 5:.1f}"/>'


def document(width: int, height: int, parts: Sequence[str]) -> str:
    """Return the text of an SVG file with these elements, on a light or dark background as the viewer prefers."""
    ground = "<style>.paper{fill:#fff}@media (prefers-color-scheme:dark){.paper{fill:#12161b}}</style>"
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    paper = f'<rect class="paper" width="{width}" height="{height}"/>'
    head = [f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" {size}>', f"<style>{STYLE}</style>{ground}"]
    return "\n".join([*head, patterns(), paper, *parts, "</svg>", ""])
