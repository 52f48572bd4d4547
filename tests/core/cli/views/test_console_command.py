"""``stratalog console``: HTTP pages about a directory and its tier."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from html import unescape
from io import BytesIO
from pathlib import Path
from urllib.parse import urlsplit

import pytest

pytest.importorskip("bottle", reason="the extra console is not installed")

from stratalog import Record, TopicPartition, open_engine, open_reader
from stratalog.cli.app import run
from stratalog.cli.contents.avro import avro_text
from stratalog.cli.parameters import Start
from stratalog.cli.views import browse, console_pages
from stratalog.cli.views.browse import Query, read_page
from stratalog.cli.views.console_pages import ConsolePages, web_application
from stratalog.cli.views.console_server import ConsoleServer, Listener, listener
from stratalog.env.clock import SystemClock
from viewed_place import HOSTILE, T0_MS, make_place

RECORDS = "/topics/orders/0/records"


class Client:
    """HTTP client of one console."""

    def __init__(self, port: int) -> None:
        self.port = port

    def request(self, path: str, method: str = "GET", headers: Mapping[str, str] | None = None) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request(method, path, headers=dict(headers or {}))
        answer = connection.getresponse()
        self.headers = answer.headers
        text = answer.read().decode()
        connection.close()
        return answer.status, text

    def page(self, path: str) -> str:
        status, text = self.request(path)
        assert status == 200, text
        return text

    def offsets(self, path: str) -> list[int]:
        return [int(offset) for offset in re.findall(r"/records/(\d+)\?", self.page(path))]


@contextmanager
def serving(data: str, tier: str | None = None, avro: Mapping[str, browse.AvroText] | None = None) -> Iterator[Client]:
    with open_reader(data, tier=tier) as reader:
        server = ConsoleServer(
            Listener("127.0.0.1", 0), web_application(ConsolePages(reader, SystemClock(), avro or {}))
        )
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            with server:
                yield Client(server.server_port)
                server.shutdown()
        finally:
            thread.join()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return make_place(tmp_path_factory.mktemp("place"))


@pytest.fixture(scope="module")
def console(place: tuple[str, str]) -> Iterator[Client]:
    with serving(*place) as client:
        yield client


def test_every_link_leads_to_a_page_and_no_data_becomes_markup(console: Client) -> None:
    visited, waiting = set[str](), ["/"]
    while waiting:
        path = waiting.pop()
        if path in visited or path.startswith("/topics/__"):
            continue
        visited.add(path)
        page = console.page(path)
        assert HOSTILE.decode() not in page
        assert "<script" not in page
        links = [unescape(link) for link in re.findall(r'href="([^"]*)"', page)]
        assert all(urlsplit(link).netloc == "" and link.startswith("/") for link in links)
        waiting += [link for link in links if link.count("/records/") == 0]
    assert {"/", "/groups", "/topics/orders", "/topics/orders/1", "/topics/orders/0/history"} <= visited
    assert "/topics/orders/0/changes?from=1&to=2" in visited


def test_answers_forbid_scripts_and_other_servers(console: Client) -> None:
    console.page("/")
    policy = console.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert console.headers["X-Content-Type-Options"] == "nosniff"
    assert console.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("127.0.0.1:80", 200),
        ("[::1]:8088", 200),
        ("rebound.example", 421),
        ("rebound.example:8088", 421),
        ("127.0.0.1.rebound.example", 421),
        ("192.168.1.7", 421),
        ("", 421),
    ],
)
def test_only_requests_for_this_machine_are_answered(console: Client, host: str, status: int) -> None:
    actual, text = console.request("/topics/orders", headers={"Host": host})
    assert actual == status
    assert ("orders-0" in text) == (status == 200)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_other_methods_than_get_are_refused(console: Client, method: str) -> None:
    assert console.request("/", method)[0] == 405


@pytest.mark.parametrize(
    ("query", "first", "count"),
    [
        ("", 0, 41),
        ("?from=7", 7, 34),
        ("?from=-3", 38, 3),
        ("?from=end", None, 0),
        (f"?from=s@{T0_MS + 5 * 60_000}", 5, 36),
        ("?from=s@2023-11-14T22:18:20Z", 5, 36),
        ("?key=12", 12, 1),
        ("?key=3132&hex=1", 12, 1),
        ("?key=missing", None, 0),
        ("?from=13&key=12", None, 0),
        ("?isolation=read_committed&from=40", 40, 1),
    ],
)
def test_records_are_found_by_offset_time_and_key(console: Client, query: str, first: int | None, count: int) -> None:
    offsets = console.offsets(RECORDS + query)
    assert len(offsets) == count
    assert (offsets[0] if offsets else None) == first


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/nothing", 404, "There is no such page"),
        ("/topics/order", 404, "did you mean &#39;orders&#39;?"),
        ("/topics/orders/9", 404, "orders-9"),
        (f"{RECORDS}?from=soon", 400, "is not a position"),
        (f"{RECORDS}?decoder=avro", 400, "use one of text, json, hex, base64"),
        (f"{RECORDS}?isolation=none", 400, "isolation"),
        (f"{RECORDS}?key=xyz&hex=1", 400, "hex digits"),
        (f"{RECORDS}/900", 404, "900"),
        ("/topics/orders?page=x", 400, "not the number of a page"),
        ("/topics/orders/0/changes?from=1&to=0", 400, "not a version"),
        ("/topics/orders/0/changes?from=1&to=99", 400, "99"),
    ],
)
def test_a_wrong_address_gets_a_page_with_the_reason(console: Client, path: str, status: int, text: str) -> None:
    actual, page = console.request(path)
    assert actual == status
    assert text in page


def test_values_are_decoded_according_to_the_query(console: Client) -> None:
    record_path = f"{RECORDS}/3"
    assert "{&#34;order&#34;:3" in console.page(record_path)
    assert "&#34;order&#34;: 3,\n" in console.page(f"{record_path}?decoder=json")
    assert "0x7b226f72646572" in console.page(f"{record_path}?decoder=hex")
    assert "eyJvcmRlciI6" in console.page(f"{record_path}?decoder=base64")
    assert "(not JSON)" in console.page("/topics/profiles/0/records?from=-1&decoder=json")
    assert "0xfffe0062696e617279" in console.page("/topics/profiles/0/records/61")


def test_long_values_are_cut_in_lists_and_records(console: Client) -> None:
    assert console.page("/topics/profiles/0/records?from=-1").count("L") < 400
    page = console.page("/topics/profiles/0/records/62")
    assert 100_000 < page.count("L") < 140_000
    assert "(600,000 bytes)" in page


def test_avro_values_are_shown_as_json(tmp_path: Path) -> None:
    fastavro = pytest.importorskip("fastavro", reason="the extra avro is not installed")
    schema = {"type": "record", "name": "Order", "fields": [{"name": "amount", "type": "long"}]}
    file, data = tmp_path / "order.avsc", tmp_path / "data"
    file.write_text(json.dumps(schema), encoding="utf-8")
    data.mkdir()
    encoded = BytesIO()
    fastavro.schemaless_writer(encoded, fastavro.parse_schema(schema), {"amount": 7})
    with open_engine(data) as engine:
        engine.create_topic("orders")
        engine.log("orders", 0).append([Record(value=encoded.getvalue()), Record(value=b""), Record(value=None)])
    with serving(str(data), avro={"orders": avro_text(file, "console")}) as client:
        page = client.page(RECORDS)
    assert "{&#34;amount&#34;: 7}" in page
    assert "(not of the Avro schema)" in page
    assert "<pre>null</pre>" in page


def test_a_tier_alone_has_no_settings_in_the_list_of_topics(place: tuple[str, str], console: Client) -> None:
    assert "cleanup.policy" in console.page("/")
    with serving(place[1]) as client:
        page = client.page("/")
        assert 'href="/topics/orders"' in page
        assert "cleanup.policy" not in page
        assert "cleanup.policy <b>compact</b>" in client.page("/topics/__consumer_offsets")
        assert client.offsets(RECORDS + "?from=-2") == [34, 35]


def test_groups_show_their_lag_and_internal_topics_are_decoded(console: Client) -> None:
    cells = re.findall(r"<td[^>]*>(.*?)</td>", console.page("/groups"))
    assert cells == ["billing", "orders-0", "30", "11", "billing", "orders-1", "5", "26"]
    links = set(re.findall(r'"(/topics/__consumer_offsets/\d+/records)', console.page("/topics/__consumer_offsets")))
    pages = [console.page(link) for link in links]
    assert sum("offset_commit group=billing" in page for page in pages) == 1


def test_pages_of_records_have_each_record_once(place: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browse, "PAGE_RECORDS", 7)
    data, uri = place
    with open_reader(data, tier=uri) as reader:
        log, start, offsets = reader.log("orders", 0), 0, list[int]()
        while True:
            page = read_page(log, Query(Start(start)))
            offsets += [record.offset for record in page.records]
            if page.next_start is None:
                break
            start = page.next_start
    assert offsets == list(range(41))


def test_a_search_for_a_key_reads_a_bounded_part_of_the_log(
    place: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browse, "PAGE_BYTES", 20_000)
    data, uri = place
    ends, offsets, start = list[int](), list[int](), 0
    with open_reader(data, tier=uri) as reader:
        log = reader.log("orders", 0)
        while True:
            page = read_page(log, Query(Start(start), key=b"30"))
            ends.append(page.end)
            offsets += [record.offset for record in page.records]
            if page.next_start is None:
                break
            start = page.next_start
    assert offsets == [30]
    assert len(ends) > 4
    assert ends[0] < 12
    assert ends == sorted(set(ends))


def test_long_lists_have_pages(console: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console_pages, "_PARTITIONS", 1)
    first, second = console.page("/topics/orders"), console.page("/topics/orders?page=1")
    assert "<h3><a" in first
    assert ("orders-0" in first, "orders-1" in first) == (True, False)
    assert ("orders-0" in second, "orders-1" in second) == (False, True)
    assert 'href="/topics/orders?page=1"' in first
    assert "next page" not in second


def test_a_page_shows_what_was_written_after_the_start(tmp_path: Path) -> None:
    with open_engine(tmp_path) as engine:
        engine.create_topic("orders")
    with serving(str(tmp_path)) as client:
        clock = SystemClock()
        assert client.offsets(RECORDS) == []
        with open_engine(tmp_path) as engine:
            engine.create_topic("later")
            engine.log("orders", 0).append([Record(value=b"v")])
        deadline_ns = clock.monotonic_ns() + 30 * 10**9
        while client.offsets(RECORDS) != [0] and clock.monotonic_ns() < deadline_ns:
            pass
        assert client.offsets(RECORDS) == [0]
        assert "later" in client.page("/")


def test_a_damaged_log_is_shown_beside_the_others(tmp_path: Path) -> None:
    with open_engine(tmp_path) as engine:
        engine.create_topic("a", partitions=2)
    (tmp_path / "a-0" / "partition.metadata").write_bytes(b"nonsense")
    with serving(str(tmp_path)) as client:
        page = client.page("/topics/a")
        assert "<b>Error:</b>" in page
        assert "a-1" in page
        assert client.request("/topics/a/0/records")[0] == 500


def test_the_command_prints_its_address_and_ends_at_an_interrupt(place: tuple[str, str]) -> None:
    data, uri = place
    command = [sys.executable, "-m", "stratalog", "console", data, "--tier", uri, "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:  # noqa: S603 - Python with arguments of the test
        assert process.stdout is not None
        assert process.stderr is not None
        line = process.stdout.readline()
        address = re.search(r"http://127\.0\.0\.1:(\d+)/", line)
        assert address is not None, line
        assert "orders" in Client(int(address[1])).page("/")
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        assert process.stderr.read() == ""


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "192.0.2.1:80", "console.example:80"])
def test_an_address_for_other_machines_needs_insecure(
    place: tuple[str, str], address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["console", place[0], "--listen", address]) == 2
    assert "--insecure" in capsys.readouterr().err


@pytest.mark.parametrize("address", ["8080", "127.0.0.1", "127.0.0.1:99999", "::1:80", ":80"])
def test_an_address_has_a_host_and_a_port(
    place: tuple[str, str], address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["console", place[0], "--listen", address]) == 2
    assert "HOST:PORT" in capsys.readouterr().err


def test_an_address_in_use_is_an_error_that_names_the_option(
    place: tuple[str, str], console: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["console", place[0], "--listen", f"127.0.0.1:{console.port}"]) == 2
    assert "choose another address with --listen" in capsys.readouterr().err


def test_loopback_addresses_are_known() -> None:
    assert all(listener(text).is_loopback for text in ("127.0.0.1:1", "127.8.8.8:1", "[::1]:1", "localhost:1"))
    assert listener("[::1]:8088").url(8088) == "http://[::1]:8088/"


def test_the_reader_is_only_read(place: tuple[str, str], console: Client) -> None:
    data, _ = place
    with open_engine(data) as engine:
        assert engine.log("orders", 0).offsets().log_end == 41
        assert "orders-0" in console.page("/topics/orders")
        assert engine.group_offsets("billing")[TopicPartition("orders", 0)].offset == 30
