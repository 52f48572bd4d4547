"""``stratalog report``: one HTML file without references to other files."""

from __future__ import annotations

import os
from html.parser import HTMLParser
from pathlib import Path

import pytest

from stratalog import open_engine
from stratalog.cli.app import run
from stratalog.cli.views.overview import LogOverview, Overview
from stratalog.cli.views.report_command import report_page
from stratalog.model.names import TopicPartition
from stratalog.reading.charts import Mark, strip
from stratalog.tier.upkeep.cost import Prices
from viewed_place import make_place

VOID = {"meta", "input", "br", "link", "img"}


class Outline(HTMLParser):
    """Parser of a page: its elements with attributes, its texts by element, and the elements that were not closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))

    def all_of(self, tag: str) -> str:
        """Return all texts directly inside elements with this tag."""
        return " ".join(text.strip() for element, text in self.texts if element == tag)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("place")
    data, uri = make_place(folder)
    file = folder / "report.html"
    assert run(["report", data, "--tier", uri, "-o", str(file)]) == 0
    return file.read_text(encoding="utf-8")


def test_the_file_loads_nothing(page: str) -> None:
    outline = Outline(page)
    assert outline.open == []
    assert not {"script", "link", "img", "iframe", "object"} & {tag for tag, _ in outline.elements}
    assert not [name for _, attributes in outline.elements for name in ("src", "href") if name in attributes]
    assert "@import" not in page
    assert "http://" not in page
    assert "https://" not in page


def test_each_kind_of_segment_has_a_pattern_and_a_text(page: str) -> None:
    outline = Outline(page)
    fills = {attributes.get("fill") for tag, attributes in outline.elements if tag == "rect"}
    patterns = {attributes["id"] for tag, attributes in outline.elements if tag == "pattern"}
    assert {f"url(#{name})" for name in patterns} == {fill for fill in fills if fill}
    titles = outline.all_of("title")
    assert "in the tier only" in titles
    assert "active segment" in titles


def test_the_page_names_what_needs_attention_and_what_comes_next(page: str) -> None:
    outline = Outline(page)
    warnings = outline.all_of("div")
    assert "payments-0: a transaction of producer 7 is open from offset 0" in warnings
    cells = outline.all_of("td")
    assert "inside every retention limit" in cells
    assert "open for long" in cells
    assert "billing" in cells
    assert "dirty ratio" in outline.all_of("span")


def test_texts_of_a_place_are_escaped() -> None:
    hostile = "<script>alert(1)</script>"
    log = LogOverview(TopicPartition("t", 0), error=hostile)
    page = report_page(Overview(hostile, hostile, 0, (log,), group_error=hostile), Prices())
    assert hostile not in page
    assert "&lt;script&gt;" in page


def test_marks_stay_inside_their_strip_and_can_be_seen() -> None:
    drawn = strip([Mark(-1, 0.5, "local"), Mark(0.5, 0.5, "tier"), Mark(1, 1, "both", "<b>"), Mark(0.9, 7, "level-3")])
    places = [
        (float(str(attributes["x"]).rstrip("%")), float(str(attributes["width"]).rstrip("%")))
        for tag, attributes in Outline(drawn).elements
        if tag == "rect" and "x" in attributes
    ]
    assert places == [(0.0, 50.0), (50.0, 0.2), (99.8, 0.2), (90.0, 10.0)]
    assert "<b>" not in drawn


def test_a_damaged_log_is_reported_and_sets_the_exit_code(tmp_path: Path) -> None:
    with open_engine(tmp_path / "data") as engine:
        engine.create_topic("a")
    (tmp_path / "data" / "a-0" / "partition.metadata").write_bytes(b"nonsense")
    file = tmp_path / "report.html"
    assert run(["report", str(tmp_path / "data"), "-o", str(file)]) == 1
    assert "a-0 cannot be read" in file.read_text(encoding="utf-8")


def test_a_missing_directory_is_an_error_without_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", str(tmp_path / "missing"), "-o", str(tmp_path / "r.html")]) == 2
    assert "no such file or directory" in capsys.readouterr().err
    assert not (tmp_path / "r.html").exists()


def test_a_directory_whose_name_is_not_utf_8_has_a_report(tmp_path: Path) -> None:
    data = tmp_path / os.fsdecode(b"data-\xff")
    with open_engine(data) as engine:
        engine.create_topic("t")
    assert run(["report", str(data), "-o", str(tmp_path / "report.html")]) == 0
    assert r"data-\udcff" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_report_is_written_through_a_link_and_to_a_device(tmp_path: Path) -> None:
    with open_engine(tmp_path / "data") as engine:
        engine.create_topic("t")
    (tmp_path / "link.html").symlink_to("report.html")
    for file in (tmp_path / "link.html", Path(os.devnull)):
        assert run(["report", str(tmp_path / "data"), "-o", str(file)]) == 0
    assert "</html>" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert (tmp_path / "link.html").is_symlink()
    assert Path(os.devnull).is_char_device()
    assert not list(tmp_path.glob("*.tmp"))
