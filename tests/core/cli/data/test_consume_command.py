"""``stratalog consume``: positions, timestamps, templates, decoders, and the log end."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from own_command import running_command
from stratalog import Record, open_engine
from stratalog.cli.app import run
from stratalog.reading.directory_reader import DirectoryReader

START_MS = 1_700_000_000_000
Consumed = Callable[..., list[int]]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a directory with a topic of two partitions; compaction removed every second record of partition 0."""
    folder = tmp_path / "data"
    with open_engine(folder) as engine:
        engine.create_topic("t", partitions=2, config={"cleanup.policy": "compact"})
        records = [Record(timestamp_ms=START_MS + i, key=b"k%d" % (i // 2), value=b"v%d" % i) for i in range(20)]
        engine.log("t", 0).append(records)
        engine.log("t", 0).roll()
        engine.run_cleaner()
        engine.alter_topic("t", {"cleanup.policy": None})  # a compacted topic refuses records without a key
        engine.log("t", 1).append([Record(timestamp_ms=START_MS + 5, key=None, value=None, headers=(("h", None),))])
    return folder


@pytest.fixture
def offsets(place: Path, capsys: pytest.CaptureFixture[str]) -> Consumed:
    def consumed(*options: object) -> list[int]:
        assert run(["consume", "t", "-p", "0", *map(str, options), "--dir", str(place), "-J"]) == 0
        return [json.loads(line)["offset"] for line in capsys.readouterr().out.splitlines()]

    return consumed


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("-o", "beginning", "-c", 2), [1, 3]),
        (("-o", "end"), []),
        (("-o", "-4"), [17, 19]),
        (("-o", 16), [17, 19]),
        (("--to", 4), [1, 3]),
        (("-o", f"s@{START_MS + 16}"), [17, 19]),
        (("--from-time", "2023-11-14T22:13:20.016Z"), [17, 19]),
        (("--from-time", "2023-11-14T23:13:20.016+01:00"), [17, 19]),
        (("--from-time", START_MS + 16), [17, 19]),
        (("--to-time", START_MS + 3), [1]),
        (("--from-time", START_MS + 4, "--to-time", START_MS + 8), [5, 7]),
        (("--tail", 3), [15, 17, 19]),
        (("--tail", 100), list(range(1, 20, 2))),
        (("--tail", 1, "--key", "k2"), [5]),
    ],
)
def test_positions_and_times(offsets: Consumed, options: tuple[object, ...], expected: list[int]) -> None:
    assert offsets(*options) == expected


def test_a_template_prints_as_kcat_does(place: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    template = r"%t-%p %o %T %k %s %h %K %S %R%%\x41\t\n"
    assert run(["consume", "t", "-o", "19", "-f", template, "--dir", str(place)]) == 0
    assert capfdbinary.readouterr().out == b"t-0 19 1700000000019 k9 v19  2 3 \0\0\0\x03%A\t\n"
    assert run(["consume", "t", "-p", "1", "-f", template, "--dir", str(place)]) == 0
    assert capfdbinary.readouterr().out == b"t-1 0 1700000000005   h=NULL -1 -1 \xff\xff\xff\xff%A\t\n"
    assert run(["consume", "t", "-p", "1", "-f", "[%s]", "--null", "NULL", "--dir", str(place)]) == 0
    assert capfdbinary.readouterr().out == b"[NULL]"


@pytest.mark.parametrize(
    ("value", "decoder", "people", "item"),
    [
        (b"null", "text", '"null"', {"value": "null"}),
        (None, "text", "null", {"value": None}),
        (b"\xff\0", "text", "0xff00", {"value_base64": "/wA="}),
        (b"null", "json", "null", {"value": None}),
        (b'{"a":[1]}', "text", '{"a":[1]}', {"value": '{"a":[1]}'}),
        (b'{"a":[1]}', "json", '{"a":[1]}', {"value": {"a": [1]}}),
        (b"{oops", "json", '"{oops"', {"value": "{oops"}),
        (b"ab", "hex", "0x6162", {"value_hex": "6162"}),
        (b"ab", "base64", "YWI=", {"value_base64": "YWI="}),
        (b"x" * 5000, "text", f'"{"x" * 5000}"', {"value": "x" * 5000}),
    ],
)
def test_values_are_shown_in_full_and_apart(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    value: bytes | None,
    decoder: str,
    people: str,
    item: dict[str, object],
) -> None:
    with open_engine(tmp_path / "data") as engine:
        engine.create_topic("t")
        engine.log("t", 0).append([Record(timestamp_ms=START_MS, key=b"k", value=value)])
    arguments = ["consume", "t", "--decoder", decoder, "--key-decoder", "text", "--dir", str(tmp_path / "data")]
    assert run(arguments) == 0
    first, *further_lines = capsys.readouterr().out.splitlines()
    assert first == f'0:0  2023-11-14T22:13:20.000Z  "k" = {people}'
    assert bool(further_lines) == (value == b"{oops")
    assert run([*arguments, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert {name: printed[name] for name in printed if name.startswith("value")} == item
    assert ("error" in printed) == (value == b"{oops")


def test_committed_offsets_are_decoded(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["consume", "t", "--group", "g", "--dir", str(place)]) == 0
    capsys.readouterr()
    assert run(["consume", "__consumer_offsets", "--dir", str(place), "-c", "1"]) == 0
    assert "offset_commit group=g topic=t partition=0: offset=20" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--from-time", "yesterday"), "is not a time: use ISO 8601"),
        (("-o", "middle"), "is not a position"),
        (("-o", "1", "--tail", "1"), "exclude each other"),
        (("--follow", "--to", "1"), "--follow has no end"),
        (("-f", "%q"), "unknown token %q"),
        (("-f", "%s", "--json"), "exclude each other"),
        (("--null", "N"), "--null is for --format"),
        (("--group", "g", "--tail", "1"), "--group resumes"),
        (("--group", ""), "the name of the group is empty: give --group NAME"),
    ],
)
def test_wrong_options_are_explained(
    place: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], said: str
) -> None:
    assert run(["consume", "t", *options, "--dir", str(place)]) == 2
    assert said in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(("name", "said"), [("orderz", "did you mean 'orders'?"), ("xyz", "its topics are orders, t")])
def test_an_unknown_topic_is_reported_with_a_similar_name(
    place: Path, capsys: pytest.CaptureFixture[str], name: str, said: str
) -> None:
    assert run(["topics", "create", "orders", "--dir", str(place)]) == 0
    for command in (["consume", name], ["topics", "describe", name], ["topics", "alter", name, "--set", "flush.ms=1"]):
        assert run([*command, "--dir", str(place)]) == 2
        assert said in capsys.readouterr().err
    assert run(["consume", "t", "-p", "7", "--dir", str(place)]) == 2
    assert "topic t has the partitions 0, 1" in capsys.readouterr().err


def followed(folder: Path, *options: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
    arguments = ["consume", "t", *options, "--follow", "-f", "%s\\n", "--dir", str(folder)]
    return running_command(*arguments, stderr=subprocess.PIPE)


@pytest.mark.long
def test_follow_prints_new_records_until_ctrl_c(tmp_path: Path) -> None:
    with open_engine(tmp_path / "data") as engine:
        engine.create_topic("t")
        engine.log("t", 0).append([Record(value=b"old")])
    with followed(tmp_path / "data", "-o", "beginning") as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"old\n"
        with open_engine(tmp_path / "data") as engine:
            engine.log("t", 0).append([Record(value=b"new")])
        assert running.stdout.readline() == b"new\n"
        running.send_signal(signal.SIGINT)
        _, err = running.communicate(timeout=60)
    assert running.returncode == 130
    assert b"Traceback" not in err


def test_follow_prints_no_record_below_the_first_offset(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the command starts, partition 1 ends below the first offset."""
    folder, values = tmp_path / "data", [b"0", b"1", b"2"]
    with open_engine(folder) as engine:
        engine.create_topic("t", partitions=2)
        engine.log("t", 0).append([Record(value=value) for value in values])
        engine.log("t", 1).append([Record(value=values[0])])
    real = DirectoryReader.refresh

    def refresh(self: DirectoryReader) -> object:
        with open_engine(folder) as engine:
            engine.log("t", 1).append([Record(value=value) for value in values[1:]])
        return real(self)

    monkeypatch.setattr(DirectoryReader, "refresh", refresh)
    assert run(["consume", "t", "-o", "2", "--follow", "-c", "2", "-f", "%p:%o\n", "--dir", str(folder)]) == 0
    assert capsys.readouterr().out == "0:2\n1:2\n"


@pytest.mark.long
def test_ctrl_c_commits_what_a_group_has_printed(tmp_path: Path) -> None:
    with open_engine(tmp_path / "data") as engine:
        engine.create_topic("t")
        engine.log("t", 0).append([Record(value=b"%d" % number) for number in range(3)])
    with followed(tmp_path / "data", "--group", "g") as running:
        assert running.stdout is not None
        assert [running.stdout.readline() for _ in range(3)] == [b"0\n", b"1\n", b"2\n"]
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=60)
    assert running.returncode == 130
    with open_engine(tmp_path / "data") as engine, engine.consumer(group="g", topics=["t"]) as consumer:
        (committed,) = consumer.committed().values()
    assert committed.offset in {2, 3}  # the signal may arrive before the offset of the last line is stored
