"""Progress of commands: one line on a terminal, nothing in a pipe. Ctrl-C ends each command cleanly."""

from __future__ import annotations

import io
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import Progress as Bar

from stratalog import Record, open_engine, open_reader
from stratalog.cli.app import INTERRUPTED, run
from stratalog.cli.output import BYTE_COLUMNS, ByteProgress, Output

CONFIG = {"remote.storage.enable": True, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0}
MIB = 1 << 20


@pytest.fixture
def data(tmp_path: Path, bucket: Path) -> Path:
    """Return a directory with three closed segments, beside empty buckets."""
    (tmp_path / "archive").mkdir()
    with open_engine(tmp_path / "data", tier=bucket.as_uri()) as engine:
        engine.create_topic("t", config=CONFIG)
        log = engine.log("t", 0)
        for number in range(3):
            log.append([Record(key=b"k%d" % number, value=bytes(1 << 16))] * 4)
            log.roll()
    return tmp_path / "data"


# --- the progress line ------------------------------------------------------------------------------------------------


def test_the_line_has_bytes_rate_and_time_left() -> None:
    now_s = [0.0]
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    bar = Bar(*BYTE_COLUMNS, console=console, auto_refresh=False, get_time=lambda: now_s[0])
    progress = ByteProgress(bar, "offloading")
    for second in range(5):
        now_s[0] = float(second)
        progress(second * 10 * MIB, 100 * MIB)
    console.print(bar.get_renderable())
    line = console.file.getvalue()  # type: ignore[attr-defined]  # the file is the StringIO above
    assert "40.0/100.0 MiB" in line
    assert "10.0 MiB/s" in line
    assert "00:06" in line


@pytest.mark.parametrize("as_json", [False, True])
def test_a_pipe_gets_no_line(capfd: pytest.CaptureFixture[str], *, as_json: bool) -> None:
    with Output(as_json=as_json).bytes_progress("offloading") as progress:
        progress(1, 2)
    assert capfd.readouterr() == ("", "")


@contextmanager
def on_terminal(columns: int, *arguments: object) -> Iterator[tuple[subprocess.Popen[bytes], Callable[[], bytes]]]:
    """Start a command on a pseudo terminal. Yield its process, and a function that returns all its output."""
    leader, follower = pty.openpty()
    environment = os.environ | {"COLUMNS": str(columns), "TERM": "xterm"}
    process = subprocess.Popen(  # noqa: S603 - our own command
        [sys.executable, "-m", "stratalog", *map(str, arguments)],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env=environment,
    )
    os.close(follower)

    def shown() -> bytes:
        output = b""
        poll = select.poll()  # select refuses a descriptor above 1,023
        poll.register(leader, select.POLLIN)
        while poll.poll(60_000):
            try:
                output += os.read(leader, 65536)
            except OSError:  # the other end is closed
                return output
        raise AssertionError(output)

    try:
        yield process, shown
    finally:
        process.kill()
        process.wait()
        os.close(leader)


@pytest.mark.long
@pytest.mark.parametrize("columns", [38, 80])
def test_a_terminal_gets_one_line_that_is_removed_at_the_end(data: Path, columns: int) -> None:
    uri = data.with_name("bucket").as_uri()
    with on_terminal(columns, "offload", "--dir", data, "--tier", uri) as (process, read_output):
        text = read_output()
        assert process.wait(60) == 0
    before, _, _ = text.partition(b"offloaded")
    assert b"offloading" in before
    assert before.count(b"\n") == 1  # after the last state of the line, which is then removed
    assert before.endswith(b"\x1b[1A\x1b[2K")


# --- Ctrl-C -----------------------------------------------------------------------------------------------------------

COMMANDS: dict[str, Callable[[Path, str], list[object]]] = {
    "offload": lambda data, uri: ["offload", "--dir", data, "--tier", uri],
    "retention": lambda data, uri: ["retention", "--dir", data, "--tier", uri],
    "cleaner": lambda data, uri: ["cleaner", "--dir", data, "--tier", uri],
    "erase": lambda data, uri: ["erase", "t", "--key", "k1", "--dir", data, "--tier", uri],
    "verify": lambda data, _: ["verify", data],
    "verify tier": lambda _, uri: ["verify", uri, "--deep"],
    "archive": lambda data, _: ["archive", data, data.with_name("archive").as_uri()],
    "restore": lambda data, uri: ["restore", uri, data.with_name("restored")],
    "attach": lambda data, uri: ["attach", uri, "--dir", data.with_name("attached")],
    "recover": lambda data, _: ["recover", data],
}


def test_ctrl_c_while_files_are_produced_reports_that_the_rest_was_not_appended(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [data.with_name(name) for name in ("one", "two")]
    for file in files:
        file.write_bytes(b"line\n" * 10)
    update, calls = ByteProgress.__call__, list[tuple[int, int]]()

    def interrupted(progress: ByteProgress, done_bytes: int, total_bytes: int) -> None:
        calls.append((done_bytes, total_bytes))
        update(progress, done_bytes, total_bytes)
        signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(ByteProgress, "__call__", interrupted)
        assert run(["produce", "t", *map(str, files), "-k", "k", "--dir", str(data), "--json"]) == INTERRUPTED
    captured = capsys.readouterr()
    assert calls == [(50, 100)]
    assert "50 B of 100 B done; the rest was not appended" in captured.err
    assert '"records": 10,' in captured.out


@pytest.mark.parametrize("json", [(), ("--json",)])
@pytest.mark.parametrize("name", COMMANDS)
def test_ctrl_c_ends_a_command_in_order_and_reports_the_completed_work(
    data: Path,
    name: str,
    json: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    uri = data.with_name("bucket").as_uri()
    arguments = [*map(str, COMMANDS[name](data, uri)), *json]
    if name not in {"offload", "archive", "verify", "recover"}:
        assert run(["offload", "--dir", str(data), "--tier", uri]) == 0
    if name == "recover":
        for file in (".kafka_cleanshutdown", "recovery-point-offset-checkpoint"):
            (data / file).unlink()
    if name == "attach":
        shutil.rmtree(data)
    handler = signal.getsignal(signal.SIGINT)
    update = ByteProgress.__call__

    def interrupted(progress: ByteProgress, done_bytes: int, total_bytes: int) -> None:
        update(progress, done_bytes, total_bytes)
        if done_bytes:
            signal.raise_signal(signal.SIGINT)

    capsys.readouterr()
    with monkeypatch.context() as patch:
        patch.setattr(ByteProgress, "__call__", interrupted)
        assert run(arguments) == INTERRUPTED
    *_, line = capsys.readouterr().err.splitlines()
    assert "interrupted" in line
    assert " done; run the command again for the rest" in line
    assert line.startswith("{") == bool(json)
    assert signal.getsignal(signal.SIGINT) is handler
    assert run(arguments) == 0
    with open_reader(uri if name == "attach" else data) as reader:
        assert list(reader.topics()) == ["t"]


@pytest.mark.long
def test_ctrl_c_in_another_thread_than_the_main_one_stops_it_too(
    tmp_path: Path, bucket: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    uri = bucket.as_uri()
    with open_engine(tmp_path / "data", tier=uri) as engine:
        engine.create_topic("t", partitions=4, config=CONFIG)
        for partition in range(4):
            for _ in range(3):
                engine.log("t", partition).append([Record(key=b"k", value=bytes(1 << 16))])
                engine.log("t", partition).roll()
        engine.offload()
    update = ByteProgress.__call__
    calls = list[int]()

    def interrupted(progress: ByteProgress, done_bytes: int, total_bytes: int) -> None:
        calls.append(done_bytes)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGINT)  # the main thread runs the signal handler while other threads work
        update(progress, done_bytes, total_bytes)

    monkeypatch.setattr(ByteProgress, "__call__", interrupted)
    arguments = ["restore", uri, str(tmp_path / "restored")]
    assert run(arguments) == INTERRUPTED
    assert "restoring: " in capsys.readouterr().err
    monkeypatch.undo()
    assert run(arguments) == 0
    with open_reader(tmp_path / "restored") as reader:
        assert [len(list(reader.log("t", number).records())) for number in range(4)] == [3] * 4
