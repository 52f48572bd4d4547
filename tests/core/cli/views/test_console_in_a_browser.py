"""``stratalog console`` in a headless Chromium: pages fit narrow and wide windows, and the browser reports no error."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("bottle", reason="the extra console is not installed")

import threading

from headless import AVAILABLE, Browser, browser
from stratalog import open_reader
from stratalog.cli.app import run
from stratalog.cli.views.console_pages import ConsolePages, web_application
from stratalog.cli.views.console_server import ConsoleServer, Listener
from stratalog.env.clock import SystemClock
from viewed_place import make_place

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="chromedriver is not installed")

PATHS = (
    "",
    "groups",
    "topics/orders",
    "topics/orders/0",
    "topics/orders/0/history",
    "topics/orders/0/changes?from=1&to=3",
    "topics/profiles/0/records?from=-5",
    "topics/profiles/0/records/60",
    "topics/nothing",
)
OVERFLOW = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return make_place(tmp_path_factory.mktemp("place"))


@pytest.fixture(scope="module")
def url(place: tuple[str, str]) -> Iterator[str]:
    data, uri = place
    with open_reader(data, tier=uri) as reader:
        server = ConsoleServer(Listener("127.0.0.1", 0), web_application(ConsolePages(reader, SystemClock(), {})))
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        with server:
            yield f"http://127.0.0.1:{server.server_port}/"
            server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with browser() as opened_browser:
        yield opened_browser


@pytest.mark.parametrize("width", [380, 1280])
@pytest.mark.parametrize("path", PATHS)
def test_a_page_is_no_wider_than_its_window(window: Browser, url: str, path: str, width: int) -> None:
    window.size(width)
    window.open(url + path)
    assert window.run(OVERFLOW) == 0
    status = [text for text in window.complaints() if "the server responded with a status of 404" not in text]
    assert status == []


def test_the_style_is_applied_and_data_is_no_element(window: Browser, url: str) -> None:
    window.open(f"{url}topics/profiles/0/records?from=60")
    assert window.run("return document.scripts.length") == 0
    assert window.run("return getComputedStyle(document.querySelector('.card')).borderTopWidth") == "1px"
    assert "<script>alert('key')</script>" in window.run("return document.body.innerText")


def test_the_form_shows_the_records_of_a_key(window: Browser, url: str) -> None:
    window.open(f"{url}topics/orders/0")
    window.run("document.querySelector('[name=key]').value = '12'; document.querySelector('button').click()")
    window.open(window.run("return location.href"))
    assert "key=12" in window.run("return location.href")
    assert window.run("return document.querySelectorAll('.card').length") == 1


def test_segments_differ_without_colour(window: Browser, url: str) -> None:
    window.open(f"{url}topics/orders/0")
    fills = window.run("return [...document.querySelectorAll('svg.chart rect')].map(r => r.getAttribute('fill'))")
    assert len({fill for fill in fills if fill and fill.startswith("url(#pattern-")}) >= 3
    assert "both" in window.run("return document.querySelector('tbody').innerText")


@pytest.mark.parametrize("width", [380, 1280])
def test_the_report_is_no_wider_than_its_window(
    window: Browser, place: tuple[str, str], tmp_path: Path, width: int
) -> None:
    file = tmp_path / "report.html"
    assert run(["report", place[0], "--tier", place[1], "-o", str(file)]) == 0
    window.size(width)
    window.open(file.as_uri())
    assert window.run(OVERFLOW) == 0
    assert window.complaints() == []
