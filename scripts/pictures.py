"""Draw the pictures of the documentation as SVG files that are readable on light and on dark pages.

``scripts/generate_docs.py`` writes the files to docs/images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Final, NamedTuple

_STYLE: Final = """\
text{font:14px system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif;fill:#1f2328}
.small{font-size:12px;fill:#59636e}.bold{font-weight:600}
.box{fill:#f6f8fa;stroke:#8c959f}.local{fill:#ddf4ff;stroke:#0969da}.tier{fill:#fff1e5;stroke:#bc4c00}
.meta{fill:#fbefff;stroke:#8250df}.good{fill:#dafbe1;stroke:#1a7f37}.none{fill:none;stroke:#8c959f;stroke-dasharray:4 3}
.line{fill:none;stroke:#59636e;stroke-width:1.5}.head{fill:#59636e}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.small{fill:#a0aab4}
.box{fill:#21262d;stroke:#7d8590}.local{fill:#0c2d6b;stroke:#58a6ff}.tier{fill:#5a1e02;stroke:#f0883e}
.meta{fill:#3c1e70;stroke:#bc8cff}.good{fill:#033a16;stroke:#3fb950}.none{stroke:#7d8590}
.line{stroke:#a0aab4}.head{fill:#a0aab4}}"""
_CHARACTER: Final = 7.4  # mean width of a character of 14 px; boxes get this much for each character of a line
_LINE: Final = 18
_ROW, _BOX, _INDENT = 36, 28, 34  # height of a row of a tree and of its box; width of one more level


class Svg:
    """A picture of boxes, arrows and text. Coordinates are pixels from the top left.

    Args:
        width: width of the picture.
        height: height of the picture.
        title: the alternative text.
    """

    def __init__(self, width: float, height: float, title: str) -> None:
        self._width, self._height, self._title = width, height, title
        self._parts: list[str] = []

    def box(self, x: float, y: float, width: float, height: float, *lines: str, kind: str = "box") -> None:
        """Draw a box with centred lines of text; the first of several lines is bold."""
        self._parts.append(f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4"/>')
        top = y + height / 2 - (len(lines) - 1) * _LINE / 2 + 5
        for number, line in enumerate(lines):
            style = "bold" if number == 0 and len(lines) > 1 else "small" if number else ""
            self.text(x + width / 2, top + number * _LINE, line, style=style, anchor="middle")

    def text(self, x: float, y: float, text: str, *, style: str = "", anchor: str = "start") -> None:
        """Write one line of text; ``anchor`` is "start", "middle" or "end", and ``style`` is "small", "bold" or ""."""
        self._parts.append(
            f'<text class="{style}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text, quote=False)}</text>'
        )

    def arrow(self, *points: tuple[float, float], label: str = "") -> None:
        """Draw an arrow through ``points`` to the last one; the label is above or beside the last segment."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        self._parts.append(f'<polyline class="line" points="{path}" marker-end="url(#head)"/>')
        if label:
            (x, y), (end_x, end_y) = points[-2:]
            middle = (x + end_x) / 2, (y + end_y) / 2
            if abs(end_x - x) < abs(end_y - y):
                self.text(middle[0] + 8, middle[1] + 4, label, style="small")
            else:
                self.text(middle[0], middle[1] - 6, label, style="small", anchor="middle")

    def line(self, *points: tuple[float, float]) -> None:
        """Draw a line through ``points``."""
        self._parts.append(f'<polyline class="line" points="{" ".join(f"{x:g},{y:g}" for x, y in points)}"/>')

    def render(self) -> str:
        """Return the picture as SVG."""
        return "\n".join(
            [
                (
                    f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self._width:g} {self._height:g}"'
                    f' width="{self._width:g}" height="{self._height:g}" role="img" aria-label="{escape(self._title)}">'
                ),
                f"<title>{escape(self._title)}</title><style>{_STYLE}</style>",
                (
                    '<defs><marker id="head" markerWidth="9" markerHeight="9" refX="8" refY="4" orient="auto">'
                    '<path class="head" d="M0,0L9,4L0,8z"/></marker></defs>'
                ),
                *self._parts,
                "</svg>\n",
            ]
        )


class TreeBox(NamedTuple):
    """A box of a tree.

    Attributes:
        parent: number of the box from which an arrow leads to this box; None for the root.
        text: the text in the box.
        note: the small text beside the box.
    """

    parent: int | None
    text: str
    note: str = ""


def tree(title: str, boxes: Sequence[TreeBox]) -> str:
    """Return a picture of a tree with a row for each box. In ``boxes``, a parent comes before its children."""
    children: dict[int | None, list[int]] = {}
    for number, box in enumerate(boxes):
        children.setdefault(box.parent, []).append(number)
    rows, waiting = list[tuple[int, int]](), [(0, 0)]  # (number of the box, depth), from top to bottom
    while waiting:
        number, depth = waiting.pop()
        rows.append((number, depth))
        waiting += [(child, depth + 1) for child in reversed(children.get(number, []))]
    widths = [len(box.text) * _CHARACTER + 20 for box in boxes]
    right_edge = max(_INDENT * depth + widths[number] + len(boxes[number].note) * 6.6 for number, depth in rows)
    svg = Svg(right_edge + 30, len(rows) * _ROW + 10, title)
    corners = dict[int, tuple[float, float]]()
    for row, (number, depth) in enumerate(rows):
        x, y = corners[number] = 10 + _INDENT * depth, 8 + _ROW * row
        svg.box(x, y, widths[number], _BOX, boxes[number].text, kind="local" if number else "box")
        if boxes[number].note:
            svg.text(x + widths[number] + 10, y + 19, boxes[number].note, style="small")
        if (parent := boxes[number].parent) is not None:
            parent_x, parent_y = corners[parent]
            svg.arrow((parent_x + 14, parent_y + _BOX), (parent_x + 14, y + _BOX / 2), (x, y + _BOX / 2))
    return svg.render()


def stack(title: str, layers: Sequence[str]) -> str:
    """Return a picture of layers from top to bottom: each layer uses those below it."""
    width = max(map(len, layers)) * _CHARACTER + 60
    svg = Svg(width + 20, len(layers) * 34 + 10, title)
    for number, layer in enumerate(layers):
        svg.box(10, 8 + number * 34, width, 28, layer, kind="local")
    return svg.render()


def bars(title: str, unit: str, groups: Mapping[str, Mapping[str, float]], highlighted: str) -> str:
    """Return a bar chart with a group for each case, and in each group a bar for each side.

    The bars of the side ``highlighted`` have another color.
    """
    left_margin, width = 150, 420
    height = sum(34 + 22 * len(sides) for sides in groups.values())
    svg = Svg(left_margin + width + 120, height + 34, title)
    svg.text(10, 20, unit, style="small")
    y = 34
    for group, sides in groups.items():
        svg.text(10, y + 14, group, style="bold")
        y += 22
        greatest = max(sides.values())
        for side, value in sides.items():
            length = max(2, width * value / greatest)
            svg.text(left_margin - 8, y + 14, side, style="small", anchor="end")
            svg.box(left_margin, y + 2, length, 16, kind="local" if side == highlighted else "box")
            svg.text(
                left_margin + length + 8, y + 14, f"{value:,.3g}" if value < 100 else f"{value:,.0f}", style="small"
            )
            y += 22
        y += 12
    return svg.render()


def two_tiers() -> str:
    """Return the picture of the README, which shows one log on local disk and in a bucket."""
    svg = Svg(
        760, 318, "One log in two places: older segments in the bucket, newer segments on local disk, read as one log"
    )
    svg.box(10, 10, 230, 40, "append, produce, bulk write")
    svg.box(500, 10, 250, 40, "fetch, consume, scan, SQL, Spark")
    svg.box(10, 86, 740, 62, kind="none")
    svg.text(22, 104, "one log", style="bold")
    svg.arrow((125, 50), (125, 116), (640, 116), (736, 116))
    svg.arrow((625, 86), (625, 50))
    cells = [("0", "tier"), ("1000", "tier"), ("2000", "tier"), ("3000", "both"), ("4000", "both"), ("5000", "local")]
    for number, (offset, kind) in enumerate(cells):
        svg.text(150 + number * 98, 138, offset, style="small")
        if kind != "local":
            svg.box(150 + number * 98, 246, 90, 34, f"{offset}.seg", kind="tier")
        if kind != "tier":
            svg.box(150 + number * 98, 178, 90, 34, f"{offset}.log" if kind == "both" else "active", kind="local")
    return _two_tiers_labels(svg).render()


def _two_tiers_labels(svg: Svg) -> Svg:
    svg.text(10, 194, "local disk", style="bold")
    svg.text(10, 210, "Kafka's files", style="small")
    svg.text(10, 262, "bucket (S3, ...)", style="bold")
    svg.text(10, 278, "objects, manifest", style="small")
    svg.arrow((489, 212), (489, 246), label="offload")
    svg.line((150, 296), (738, 296))
    svg.text(150, 312, "log start", style="small")
    svg.text(444, 312, "local log start", style="small")
    svg.text(738, 312, "log end", style="small", anchor="end")
    return svg


def segments() -> str:
    """Return the picture of segments and of the sparse offset index."""
    svg = Svg(760, 330, "A log is a row of segments; the sparse index of a segment leads to a batch in its file")
    for number, (name, kind) in enumerate(
        [("0 ... 999", "box"), ("1000 ... 1999", "box"), ("2000 ... 2999", "local"), ("3000 ... active", "box")]
    ):
        svg.box(10 + number * 186, 26, 176, 34, name, kind=kind)
    svg.text(10, 18, "segments of one partition", style="small")
    svg.line((382, 60), (10, 92))
    svg.line((558, 60), (750, 92))
    svg.box(10, 92, 740, 228, kind="none")
    svg.text(22, 114, "00000000000000002000.index", style="bold")
    svg.text(22, 132, "last offset of a batch → its position", style="small")
    entries = [("2048", "4,120"), ("2083", "8,310"), ("2119", "12,502")]
    for number, (offset, position) in enumerate(entries):
        kind = "meta" if number == 1 else "box"
        svg.box(320 + number * 140, 108, 130, 34, f"{offset} → {position}", kind=kind)
    svg.text(22, 180, "00000000000000002000.log", style="bold")
    svg.text(22, 198, "batches, by their first offsets", style="small")
    batches = ["2000", "2016", "2031", "2049", "2066", "2084", "2102"]
    for number, offset in enumerate(batches):
        svg.box(236 + number * 73, 196, 68, 34, offset, kind="good" if number == 5 else "local")
    svg.arrow((525, 142), (525, 170), (562, 170), (562, 196))
    svg.text(22, 264, "To find offset 2090:", style="bold")
    svg.text(
        22,
        284,
        "1. The greatest offset in the index that is at most 2090 is 2083: start at position 8,310.",
        style="small",
    )
    svg.text(22, 302, "2. Read the headers of batches from there until one contains offset 2090.", style="small")
    svg.arrow((599, 260), (635, 260), (635, 230))
    svg.text(594, 264, "offset 2090", style="small", anchor="end")
    return svg.render()


def offsets() -> str:
    """Return the picture of the offsets of a log."""
    svg = Svg(760, 232, "The offsets of a log, from the log start to the log end")
    parts = [
        ("in the tier only", "tier", 150),
        ("both", "meta", 100),
        ("committed", "local", 130),
        ("open transaction", "box", 150),
        ("not replicated", "none", 120),
    ]
    x = 50.0
    edges = [x]
    for text, kind, width in parts:
        svg.box(x, 80, width, 36, text, kind=kind)
        x += width
        edges.append(x)
    long_names = ["log start", "local log start", "", "last stable offset", "high watermark", "log end"]
    short_names = ["", "", "", "LSO", "HW", "LEO"]
    for edge, name, short in zip(edges, long_names, short_names, strict=True):
        if name:
            svg.arrow((edge, 56), (edge, 80))
            svg.text(edge, 46, name, style="small", anchor="middle")
        svg.text(edge, 136, short, style="bold", anchor="middle")
    for number, (end, text) in enumerate([(3, "read_committed"), (4, "read_uncommitted"), (5, "log_end (replicas)")]):
        y = 160 + number * 24
        svg.arrow((edges[0], y), (edges[end], y))
        svg.text(edges[0] + 6, y - 5, text, style="small")
    return svg.render()


def manifest() -> str:
    """Return the picture of a tier's objects."""
    svg = Svg(760, 316, "Roots of the manifest name pages and segments; the newest root is the state of the tier")
    svg.text(10, 20, "manifest/", style="bold")
    for number, (name, kind) in enumerate([("root 41", "box"), ("root 42", "box"), ("root 43", "meta")]):
        svg.box(110 + number * 160, 8, 110, 34, name, kind=kind)
    svg.text(552, 22, "newest: this state counts", style="small")
    svg.text(552, 38, "41, 42: history, until collected", style="small")
    svg.text(10, 112, "pages/", style="bold")
    svg.box(110, 98, 210, 36, "page: older entries", kind="meta")
    svg.arrow((440, 42), (440, 70), (260, 70), (260, 98))
    svg.arrow((485, 42), (485, 160), (553, 160), (553, 188))
    svg.text(493, 112, "newer entries", style="small")
    svg.text(10, 208, "segments/", style="bold")
    for number in range(5):
        svg.box(110 + number * 128, 188, 118, 36, f"{number}000-...seg", kind="tier" if number < 4 else "none")
    for number in range(2):
        svg.arrow((169 + number * 128, 134), (169 + number * 128, 188))
    svg.arrow((485, 160), (425, 160), (425, 188))
    svg.text(622, 160, "uploaded, not yet", style="small")
    svg.text(622, 176, "named by a root", style="small")
    names = [(".log", 180), (".index", 70), (".timeindex", 95), (".txnindex", 90), (".snapshot", 90), ("epochs", 70)]
    svg.line((110, 224), (10, 272))
    svg.line((228, 224), (745, 272))
    x = 10.0
    for name, width in [*names, ("footer", 140)]:
        svg.box(x, 272, width, 34, name, kind="meta" if name == "footer" else "tier")
        x += width
    return svg.render()


def compaction() -> str:
    """Return the picture of a log before and after compaction."""
    svg = Svg(760, 266, "Compaction keeps the last record of each key, at its offset")
    records = [
        ("A", "1"), ("B", "1"), ("A", "2"), ("C", "1"), ("B", "2"), ("A", "3"), ("C", "null"), ("D", "1"), ("B", "3"),
    ]  # fmt: skip
    last = {key: offset for offset, (key, _) in enumerate(records[:7])}
    svg.text(98, 14, "closed segments", style="small")
    svg.line((90, 20), (594, 20))
    svg.text(609, 14, "active segment", style="small")
    svg.line((601, 20), (740, 20))
    svg.text(10, 69, "before", style="bold")
    svg.text(10, 161, "after", style="bold")
    for offset, (key, value) in enumerate(records):
        x, is_active = 90 + offset * 73, offset >= 7
        svg.text(x + 33, 38, str(offset), style="small", anchor="middle")
        svg.box(x, 46, 66, 34, f"{key} = {value}", kind="local" if is_active else "box")
        is_kept = is_active or last[key] == offset
        svg.box(
            x,
            138,
            66,
            34,
            *([f"{key} = {value}"] if is_kept else []),
            kind=_box_kind(is_active=is_active, is_kept=is_kept),
        )
        if is_kept:
            svg.arrow((x + 33, 80), (x + 33, 138))
    svg.text(90, 206, "Offsets do not change: a reader at offset 0 gets offset 4 next.", style="small")
    svg.text(90, 228, "C = null is a tombstone. It deletes C, and stays for delete.retention.ms.", style="small")
    svg.text(
        90,
        250,
        "B = 3 is in the active segment, which is not compacted: B = 2 stays until a later round.",
        style="small",
    )
    return svg.render()


def _box_kind(*, is_active: bool, is_kept: bool) -> str:
    return "local" if is_active else "good" if is_kept else "none"


DRAWN: Final = {
    "two-tiers": two_tiers,
    "segments": segments,
    "offsets": offsets,
    "manifest": manifest,
    "compaction": compaction,
}
