"""The charts in the documents are well-formed, and all their elements are inside of the frame without overlap."""

from __future__ import annotations

import re
from itertools import combinations
from xml.etree import ElementTree as ET

import pytest
from pictures import DRAWN, TreeBox, bars, stack, tree

NAMESPACE = "{http://www.w3.org/2000/svg}"
TREE = [
    TreeBox(None, "caller"),
    TreeBox(0, "1  append", "log & append"),
    TreeBox(1, "2  commit", "log/append"),
    TreeBox(2, "3  write", "segment"),
    TreeBox(1, "4  list"),
]
PICTURES = {
    **{name: draw() for name, draw in DRAWN.items()},
    "tree": tree("A tree", TREE),
    "stack": stack("A stack", ["one", "two"]),
    "bars": bars("Bars", "ms", {"a case": {"ours": 1.5, "another": 30}}, "ours"),
}


def boxes(picture: str) -> list[tuple[float, float, float, float]]:
    rectangles = ET.fromstring(picture).iter(f"{NAMESPACE}rect")  # noqa: S314 - our own text
    return [
        tuple(float(box.attrib[name]) for name in ("x", "y", "width", "height"))  # type: ignore[misc] # four of them
        for box in rectangles
    ]


@pytest.mark.parametrize("name", PICTURES)
def test_everything_is_inside_the_frame(name: str) -> None:
    root = ET.fromstring(PICTURES[name])  # noqa: S314 - our own text
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    assert boxes(PICTURES[name])
    for x, y, wide, high in boxes(PICTURES[name]):
        assert min(x, y) >= 0
        assert (x + wide <= width, y + high <= height) == (True, True)
    for text in root.iter(f"{NAMESPACE}text"):
        assert 0 <= float(text.attrib["x"]) <= width
        assert 0 < float(text.attrib["y"]) < height


def test_the_boxes_of_a_tree_do_not_overlap() -> None:
    for (x, y, wide, high), (other_x, other_y, other_wide, other_high) in combinations(boxes(PICTURES["tree"]), 2):
        is_beside = x + wide <= other_x or other_x + other_wide <= x
        assert is_beside or y + high <= other_y or other_y + other_high <= y


def test_a_bar_is_as_long_as_its_figure() -> None:
    (_, _, first_width, _), (_, _, second_width, _) = boxes(PICTURES["bars"])
    assert second_width / first_width == pytest.approx(20)
    assert re.findall(r">([\d.]+)</text>", PICTURES["bars"]) == ["1.5", "30"]


def test_a_picture_describes_itself_and_knows_dark_pages() -> None:
    for picture in PICTURES.values():
        assert re.search(r'aria-label="[^"]+"', picture)
        assert "prefers-color-scheme:dark" in picture
