"""``stratalog archive``: options, output, refused calls and exit codes."""

from __future__ import annotations

import json
import signal
import subprocess
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

import stratalog
from command_runs import printed_items
from own_command import running_command
from stratalog import Record
from stratalog.cli.app import run
from stratalog.model.names import HIGH_WATERMARKS_FILE

SMALL = {"segment.bytes": 1500, "index.interval.bytes": 100, "retention.ms": -1}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "kafka"
    fill(folder, 40)
    return folder


@pytest.fixture
def target(bucket: Path) -> str:
    return bucket.as_uri()


def fill(folder: Path, count: int) -> None:
    with stratalog.open_engine(folder) as engine:
        for topic in ("orders", "orders-old", "other"):
            if topic not in engine.topics():
                engine.create_topic(topic, config=SMALL)
            for number in range(count):
                engine.log(topic, 0).append([Record(timestamp_ms=1000 + number, value=b"x" * 100)])


def test_the_archive_reads_like_the_directory(source: Path, target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["archive", str(source), target, "--json"]) == 0
    items = printed_items(capsys)
    assert [item["topic"] for item in items] == ["orders", "orders-old", "other"]
    with stratalog.open_reader(target) as archived, stratalog.open_reader(source) as original:
        for item in items:
            log = archived.log(str(item["topic"]), 0)
            end = log.offsets().log_end
            assert item["tier_end_offset"] == end
            assert list(log.records()) == list(original.log(str(item["topic"]), 0).records(end=end))
            remote = log.view().remote
            assert remote is not None
            assert item["segments"] == len(remote.segments)
    assert run(["archive", str(source), target, "--json"]) == 0
    assert {item["segments"] for item in printed_items(capsys)} == {0}


@pytest.mark.parametrize(
    ("pattern", "topics"), [("orders", ["orders"]), ("orders.*", ["orders", "orders-old"]), ("nothing", [])]
)
def test_topics_are_chosen_by_a_pattern_that_fits_whole_names(
    source: Path, target: str, pattern: str, topics: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["archive", str(source), target, "--topics", pattern, "--json"]) == 0
    assert [item["topic"] for item in printed_items(capsys)] == topics


def test_a_pattern_without_a_topic_is_reported(source: Path, target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["archive", str(source), target, "--topics", "order"]) == 0
    assert "no topic matches --topics order: the pattern must match the whole name" in capsys.readouterr().err
    assert run(["archive", str(source), target, "--topics", "orders"]) == 0
    assert "no topic matches" not in capsys.readouterr().err


@pytest.mark.parametrize("layout", ["single", "plain", "chunked"])
def test_every_layout_keeps_the_records_and_a_gap(
    source: Path, target: str, layout: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["archive", str(source), target, "--topics", "orders", "--layout", layout]
    assert run(command) == 0
    fill(source, 40)
    logs = sorted((source / "orders-0").glob("*.log"))
    for path in logs[:-2]:
        path.unlink()
    assert run(command) == 1
    assert "deleted" in capsys.readouterr().out
    assert run([*command, "--skip-gaps"]) == 0
    with stratalog.open_reader(target) as archived:
        log = archived.log("orders", 0)
        offsets = [record.offset for record in log.records()]
        first, last = int(logs[-2].stem), int(logs[-1].stem)
        assert offsets[-(last - first) :] == list(range(first, last))
        assert offsets == [*range(len(offsets) - (last - first)), *range(first, last)]
    assert run(["tier", "ls", target]) == 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["{source}/missing", "{target}"], "no such directory"),
        (["{source}/orders-0", "{target}"], "orders-0: use its log directory"),
        (["{source}", "{source}/bucket"], "is not a URI"),
        (["{target}", "{source}"], "kafka' is not a URI"),
        (["{source}"], "name at least one log directory, and then the URI of the tier"),
        (["{source}", "file://{source}/bucket"], "is inside the log directory"),
        (["{source}", "{target}/missing"], "create the bucket or folder"),
        (["{source}", "{target}", "--layout", "cubic"], "cubic"),
        (["{source}", "{target}", "--topics", "("], "not a regular expression"),
    ],
)
def test_options_that_cannot_work_are_refused_before_anything_is_done(
    source: Path, target: str, arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["archive", *(text.format(source=source, target=target) for text in arguments)]) == 2
    assert told in capsys.readouterr().err


def test_a_cache_inside_the_log_directory_is_refused(
    source: Path, target: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STRATALOG_TIER_CACHE_DIR", str(source / "cache"))
    assert run(["archive", str(source), target]) == 2
    assert f"tier.cache.dir {source / 'cache'} is inside the log directory {source}" in capsys.readouterr().err
    assert not (source / "cache").exists()


def test_damage_is_reported_other_logs_are_archived_and_the_exit_code_is_1(
    source: Path, target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    first = min((source / "orders-0").glob("*.log"))
    first.write_bytes(first.read_bytes()[:-1] + b"?")
    assert run(["archive", str(source), target, "--json"]) == 1
    broken, *sound_items = printed_items(capsys)
    assert str(first) in str(broken["error"])
    assert broken["tier_end_offset"] == 0
    assert all(item["segments"] for item in sound_items)


def test_a_damaged_checkpoint_ends_the_command_with_exit_code_2(
    source: Path, target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = source / HIGH_WATERMARKS_FILE
    place.write_bytes(place.read_bytes()[:-5])
    assert run(["archive", str(source), target]) == 2
    assert str(place) in capsys.readouterr().err


def following(source: Path, target: str) -> AbstractContextManager[subprocess.Popen[str]]:
    return running_command("archive", str(source), target, "--follow", "--interval", "0.1", "--json", text=True)


@pytest.mark.long
def test_following_archives_segments_that_are_closed_later_and_ends_at_ctrl_c(source: Path, target: str) -> None:
    with following(source, target) as process:
        assert process.stdout is not None
        first_items = [json.loads(process.stdout.readline()) for _ in range(3)]
        before = {item["topic"]: item["tier_end_offset"] for item in first_items}
        fill(source, 40)
        later_items = [json.loads(process.stdout.readline()) for _ in range(3)]
        process.send_signal(signal.SIGINT)
        output = process.stdout.read()
    assert process.returncode == 0
    assert all(item["tier_end_offset"] > before[item["topic"]] for item in later_items)
    last_items = [json.loads(line) for line in output.splitlines()]
    passes, totals = [*first_items, *later_items, *last_items[:-3]], last_items[-3:]
    assert {item["topic"]: item["segments"] for item in totals} == {
        topic: sum(item["segments"] for item in passes if item["topic"] == topic) for topic in before
    }


@pytest.mark.long
def test_following_leaves_no_trace_in_the_directory(source: Path, target: str) -> None:
    before = {path: path.stat().st_mtime_ns for path in [source, *source.rglob("*")]}
    with following(source, target) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        process.stdout.read()
    assert {path: path.stat().st_mtime_ns for path in [source, *source.rglob("*")]} == before
