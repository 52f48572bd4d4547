"""``stratalog top``: tables about a directory, printed once, as JSON, and live in a pseudo terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from command_runs import printed_items
from stratalog import Record, open_engine
from stratalog.cli.app import run
from viewed_place import make_place

ESCAPE = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])")


class Terminal:
    """A command in a pseudo terminal, and its output so far."""

    def __init__(self, descriptor: int, process: subprocess.Popen[bytes]) -> None:
        self._descriptor, self.process, self.written = descriptor, process, ""

    def read_until(self, text: str) -> str:
        """Read until the command has printed ``text``, and return the output since the call."""
        begin = len(self.written)
        while text not in self.plain(begin):
            try:
                data = os.read(self._descriptor, 4096)
            except OSError:  # the process has ended
                data = b""
            assert data, f"{text!r} was not shown: {self.plain(begin)}"
            self.written += data.decode(errors="replace")
        return self.plain(begin)

    def plain(self, begin: int = 0) -> str:
        return ESCAPE.sub("", self.written[begin:]).replace("\r", "\n")


@contextmanager
def terminal(columns: int, lines: int, *arguments: str) -> Iterator[Terminal]:
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES"}}
    command = [sys.executable, "-m", "stratalog", "top", *arguments, "--interval", "0.1"]
    with subprocess.Popen(  # noqa: S603 - Python with arguments of the test
        command,
        stdin=follower,
        stdout=follower,
        stderr=subprocess.PIPE,
        env={**environment, "TERM": "xterm", "NO_COLOR": "1"},
    ) as process:
        os.close(follower)
        try:
            yield Terminal(leader, process)
        finally:
            process.kill()
            os.close(leader)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return make_place(tmp_path_factory.mktemp("place"))


def test_one_table_has_topics_and_groups(place: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["top", place[0], "--tier", place[1], "--once"]) == 0
    output = capsys.readouterr().out
    assert [line.split()[0] for line in output.splitlines() if line.startswith((" orders", " pro", " pay", " __"))] == [
        "orders",
        "payments",
        "profiles",
        "__consumer_offsets",
    ]
    assert "compact 4" in output
    assert re.search(r"billing +orders +37", output)


def test_json_has_an_object_for_each_topic_and_group(
    place: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["top", place[0], "--tier", place[1], "--once", "--json"]) == 0
    items = printed_items(capsys)
    orders = next(item for item in items if item.get("topic") == "orders" and "partitions" in item)
    assert (orders["partitions"], orders["high_watermark"], orders["rate"], orders["tier_lag_bytes"]) == (
        2,
        72,
        None,
        0,
    )
    assert orders["tier_bytes"] > orders["local_bytes"] > 0
    assert [item["lag"] for item in items if item.get("group") == "billing"] == [37]


def test_a_tier_alone_is_shown(place: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["top", place[1], "--once", "--json"]) == 0
    items = printed_items(capsys)
    assert [(item["topic"], item["local_bytes"]) for item in items] == [("__consumer_offsets", 0), ("orders", 0)]


def test_a_damaged_log_sets_the_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_engine(tmp_path) as engine:
        engine.create_topic("orders")
    (tmp_path / "orders-0" / "partition.metadata").write_bytes(b"nonsense")
    assert run(["top", str(tmp_path), "--once"]) == 1
    assert "cannot be read" in capsys.readouterr().out


@pytest.mark.parametrize("columns", [140, 80, 50])
def test_a_terminal_of_any_width_gets_rows_of_one_line_without_colour(place: tuple[str, str], columns: int) -> None:
    with terminal(columns, 24, place[0], "--tier", place[1]) as screen:
        text = screen.read_until("37")
        screen.read_until("37")  # the second frame replaces the first one
        screen.process.send_signal(signal.SIGINT)
        assert screen.process.wait(30) == 0
        assert screen.process.stderr is not None
        assert screen.process.stderr.read() == b""
    assert max(map(len, text.splitlines())) <= columns
    assert all(code in {"", "0", "1"} for code, kind in ESCAPE.findall(screen.written) if kind == "m")
    assert ("next" in text) == (columns >= 80)
    assert "orders" in text


def test_a_low_terminal_counts_the_topics_that_do_not_fit(tmp_path: Path) -> None:
    with open_engine(tmp_path) as engine:
        for number in range(20):
            engine.create_topic(f"topic-{number:02}")
    with terminal(100, 12, str(tmp_path)) as screen:
        text = screen.read_until("topic-05")
    assert "topics, 14 more not shown" in text


def test_records_of_a_later_writer_are_shown(tmp_path: Path) -> None:
    with open_engine(tmp_path) as engine:
        engine.create_topic("orders")
    with terminal(120, 24, str(tmp_path)) as screen:
        screen.read_until("orders")
        with open_engine(tmp_path) as engine:
            engine.log("orders", 0).append([Record(value=b"v")] * 4321)
        assert "4,321" in screen.read_until("4,321")
