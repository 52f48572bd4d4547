"""``stratalog recover`` and ``stratalog explain``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from log_bed import LogBed, records
from stratalog import Record, open_engine, open_reader
from stratalog.cli.app import run
from stratalog.model.messages.control import ControlType

Call = Callable[..., tuple[int, list[dict[str, object]], str]]
SMALL = {"segment.bytes": 600, "index.interval.bytes": 0}
COUNT = 20


@pytest.fixture
def stratalog(capsys: pytest.CaptureFixture[str]) -> Call:
    """Return a function that runs a command with --json, and returns its exit code, its items and its stderr."""

    def call(*arguments: object) -> tuple[int, list[dict[str, object]], str]:
        code = run([*map(str, arguments), "--json"])
        captured = capsys.readouterr()
        return code, [json.loads(line) for line in captured.out.splitlines()], captured.err

    return call


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    with open_engine(folder) as engine:
        engine.create_topic("t", partitions=2, config=SMALL)
        for partition in range(2):
            for number in range(COUNT):
                engine.log("t", partition).append([Record(timestamp_ms=number, value=b"%d" % number * 40)])
    return folder


@pytest.fixture
def torn(filled: Path) -> Path:
    """Return a directory as after a crash: no clean shutdown file, and the last batch of one log is incomplete."""
    (filled / ".kafka_cleanshutdown").unlink()
    last = max((filled / "t-1").glob("*.log"))
    last.write_bytes(last.read_bytes()[:-7])
    return filled


def state(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# --- recover ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [[], ["--dry-run"]])
def test_nothing_is_written_to_what_is_no_log_directory(
    stratalog: Call, filled: Path, tmp_path: Path, options: list[str]
) -> None:
    before = sorted(path.name for path in (filled / "t-0").iterdir())
    code, rows, error = stratalog("recover", filled / "t-0", *options)
    assert (code, rows) == (2, [])
    assert f"use its log directory, {filled}" in json.loads(error)["message"]
    assert sorted(path.name for path in (filled / "t-0").iterdir()) == before
    empty_directory = tmp_path / "other"
    empty_directory.mkdir()
    code, rows, error = stratalog("recover", empty_directory, *options)
    assert (code, rows) == (2, [])
    assert "contains no logs" in json.loads(error)["message"]
    assert list(empty_directory.iterdir()) == []


@pytest.mark.parametrize("command", [["recover"], ["recover", "--dry-run"], ["verify"], ["verify", "--repair"]])
def test_a_folder_that_is_merely_named_like_a_log_makes_no_log_directory(
    stratalog: Call, tmp_path: Path, command: list[str]
) -> None:
    """The command must not create log files in a folder like ``/etc/dbus-1``."""
    (tmp_path / "dbus-1" / "session.d").mkdir(parents=True)
    (tmp_path / "dbus-1" / "system.conf").write_bytes(b"<busconfig/>")
    before = sorted(tmp_path.rglob("*"))
    code, rows, error = stratalog(*command, tmp_path)
    assert (code, rows) == (2, [])
    assert "contains no logs" in json.loads(error)["message"]
    assert sorted(tmp_path.rglob("*")) == before


def test_recover_truncates_reports_and_leaves_the_directory_clean(stratalog: Call, torn: Path) -> None:
    torn_bytes = max((torn / "t-1").glob("*.log")).stat().st_size
    code, rows, _ = stratalog("recover", torn)
    assert code == 0
    assert [(row["partition"], row["log_end"], row["error"]) for row in rows] == [(0, COUNT, ""), (1, COUNT - 1, "")]
    assert all(row["recovered_segments"] for row in rows)
    kept_bytes = max((torn / "t-1").glob("*.log")).stat().st_size
    assert [row["truncated_bytes"] for row in rows] == [0, torn_bytes - kept_bytes]
    assert (torn / ".kafka_cleanshutdown").exists()
    code, rows, _ = stratalog("recover", torn)
    assert (code, [row["recovered_segments"] for row in rows]) == (0, [0, 0])


def test_a_dry_run_reports_the_same_and_writes_nothing(stratalog: Call, torn: Path) -> None:
    before = state(torn)
    code, planned, _ = stratalog("recover", torn, "--dry-run")
    assert state(torn) == before
    assert (code, planned) == stratalog("recover", torn)[:2]


def test_a_dry_run_keeps_away_from_a_running_engine(stratalog: Call, filled: Path) -> None:
    with open_engine(filled):
        for options in ((), ("--dry-run",)):
            code, rows, error = stratalog("recover", filled, *options)
            assert (code, rows) == (2, [])
            assert json.loads(error)["error"] == "LogDirLockedError"
            assert "stop the engine or broker" in json.loads(error)["message"]


@pytest.mark.parametrize("options", [(), ("--dry-run",)])
def test_a_log_that_cannot_be_recovered_is_named_and_the_others_are(
    stratalog: Call, torn: Path, options: tuple[str, ...]
) -> None:
    (torn / "t-0" / "leader-epoch-checkpoint").write_bytes(b"x")
    code, rows, _ = stratalog("recover", torn, *options)
    assert code == 1
    by_partition = {row["partition"]: row for row in rows}
    assert "leader-epoch-checkpoint" in str(by_partition[0]["error"])
    assert (by_partition[1]["error"], by_partition[1]["log_end"]) == ("", COUNT - 1)


@pytest.mark.parametrize("options", [(), ("--dry-run",)])
@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("position", [0, 1, -1])
def test_a_missing_file_of_a_segment_is_reported(
    stratalog: Call,
    filled: Path,
    caplog: pytest.LogCaptureFixture,
    options: tuple[str, ...],
    is_clean: bool,  # noqa: FBT001 - a parameter of pytest
    position: int,
) -> None:
    if not is_clean:
        (filled / ".kafka_cleanshutdown").unlink()
    logs = sorted((filled / "t-1").glob("*.log"))
    missing = logs.pop(position)
    missing.unlink()
    logs[2].rename(f"{logs[2]}.deleted")  # by a deletion that a crash has interrupted
    assert [row["file"] for row in stratalog("verify", filled)[1] if row.get("problem") == "damage"] == [str(missing)]
    code, rows, _ = stratalog("recover", filled, *options)
    assert code == 1
    by_partition = {row["partition"]: row for row in rows}
    assert by_partition[0]["error"] == ""
    assert str(missing) in str(by_partition[1]["error"])
    (warning,) = (record.getMessage() for record in caplog.records if "is missing" in record.getMessage())
    assert warning.startswith(f"{missing} is missing, but its index {missing.stem}.index exists")
    assert stratalog("recover", filled, *options)[0] == (1 if options else 0)  # the first run has removed the index


@pytest.mark.parametrize("options", [(), ("--dry-run",)])
def test_damage_after_a_clean_stop_is_reported(stratalog: Call, filled: Path, options: tuple[str, ...]) -> None:
    last = max((filled / "t-1").glob("*.log"))
    last.write_bytes(last.read_bytes()[:-7])
    code, rows, _ = stratalog("recover", filled, *options)
    assert code == 1
    by_partition = {row["partition"]: row for row in rows}
    assert by_partition[0]["error"] == ""
    assert str(last) in str(by_partition[1]["error"])


def test_all_missing_files_of_a_log_are_counted(stratalog: Call, filled: Path) -> None:
    first, *others = sorted((filled / "t-1").glob("*.log"))
    for path in (first, *others):
        path.unlink()
    code, (_, row), _ = stratalog("recover", filled, "--dry-run")
    assert code == 1
    assert row["error"] == f"records may be lost: missing {first} and {len(others)} other .log files"


def test_recover_of_nothing(stratalog: Call, tmp_path: Path) -> None:
    code, _, error = stratalog("recover", tmp_path / "missing")
    assert (code, json.loads(error)["error"]) == (2, "LogDirNotFoundError")


# --- explain ---------------------------------------------------------------------------------------------------------


def explained(
    stratalog: Call, folder: Path, offset: int, *, topic: str = "t"
) -> tuple[int, dict[object, dict[str, object]]]:
    code, steps, _ = stratalog("explain", topic, 0, offset, "--dir", folder)
    return code, {step["step"]: step for step in steps}


@pytest.mark.parametrize("offset", [0, 1, 7, COUNT - 1])
def test_explain_shows_each_step_to_a_record(stratalog: Call, filled: Path, offset: int) -> None:
    code, steps = explained(stratalog, filled, offset)
    assert code == 0
    assert list(steps) == ["view", "segment", "index", "scan", "batch", "record"]
    with open_reader(filled) as reader:
        log = reader.log("t", 0)
        segment = log.view().segment_at(offset)
        assert segment is not None
        assert steps["segment"]["file"] == segment.label
        assert (steps["batch"]["base_offset"], steps["batch"]["last_offset"]) == (offset, offset)
        fetched = log.fetch(offset)
        assert steps["batch"]["position"] == fetched.slices[0].position
        fetched.release()
    assert b"%d" % offset * 40 in str(steps["record"]["text"]).encode()
    assert (steps["record"]["timestamp_ms"], steps["record"]["read_committed"]) == (offset, True)


def test_explain_reports_a_wrong_index(stratalog: Call, filled: Path) -> None:
    first = min((filled / "t-0").glob("*.index"))
    data = bytearray(first.read_bytes())
    data[7] += 1
    first.write_bytes(data)
    _, steps = explained(stratalog, filled, int.from_bytes(data[:4], "big"))
    assert (steps["index"]["believed"], steps["index"]["position"]) == (False, 0)
    assert "which is wrong: the scan starts" in str(steps["index"]["text"])


@pytest.mark.parametrize(("offset", "why"), [(COUNT, "above the log end"), (COUNT + 5, "above the log end")])
def test_explain_reports_an_offset_without_a_record(stratalog: Call, filled: Path, offset: int, why: str) -> None:
    code, steps = explained(stratalog, filled, offset)
    assert (code, list(steps)) == (1, ["view"])
    assert why in str(steps["view"]["text"])


def test_explain_of_gaps_markers_and_aborted_records(stratalog: Call, bed: LogBed) -> None:
    batches = [
        bed.batch(0, records(1), producer=(5, 0, 0), transactional=True),
        bed.marker(1, 5, ControlType.ABORT),
        bed.batch(9, records(1, start=9)),
    ]
    bed.write_segment(0, batches)
    explanations = {offset: explained(stratalog, bed.directory, offset) for offset in (0, 1, 4, 9)}
    code, steps = explanations[0]
    assert (code, steps["record"]["aborted"], steps["record"]["read_uncommitted"]) == (0, True, True)
    assert steps["record"]["read_committed"] is False
    assert (explanations[1][0], "ABORT" in str(explanations[1][1]["record"]["text"]).upper()) == (1, True)
    assert (explanations[4][0], "not in the batch" in str(explanations[4][1]["record"]["text"])) == (1, True)
    assert explanations[9][0] == 0


def test_explain_names_the_tier_of_a_record(stratalog: Call, tmp_path: Path) -> None:
    folder, tier = tmp_path / "tiered", f"file://{tmp_path}/tier"
    (tmp_path / "tier").mkdir()
    config = {**SMALL, "remote.storage.enable": "true", "local.retention.bytes": 1, "retention.ms": -1}
    with open_engine(folder, tier=tier) as engine:
        engine.create_topic("t", config=config)
        for number in range(COUNT):
            engine.log("t", 0).append([Record(timestamp_ms=number, value=b"%d" % number * 40)])
        engine.offload()
        engine.apply_retention()
        bounds = engine.log("t", 0).offsets()
    assert 0 < bounds.local_log_start < COUNT
    for offset, place in ((0, "remote"), (bounds.local_log_start, "local")):
        code, steps, _ = stratalog("explain", "t", 0, offset, "--dir", folder, "--tier", tier)
        by_name = {step["step"]: step for step in steps}
        assert (code, by_name["segment"]["tier"], by_name["record"]["timestamp_ms"]) == (0, place, offset)


# --- text output -----------------------------------------------------------------------------------------------------


def test_people_read_a_line_a_step_and_a_row_a_log(torn: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "t", "0", "3", "--dir", str(torn)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines] == ["view:", "segment:", "index:", "scan:", "batch:", "record:"]
    assert run(["recover", str(torn)]) == 0
    report_lines = capsys.readouterr().out.splitlines()
    assert report_lines[0] == "recovered"
    assert [words[:2] for line in report_lines if (words := line.split()) and words[0] == "t"] == [
        ["t", "0"],
        ["t", "1"],
    ]


def test_the_logs_of_a_directory_that_cannot_be_opened_are_not_recovered(
    stratalog: Call, filled: Path, tmp_path: Path
) -> None:
    unreadable = tmp_path / "other"
    with open_engine(unreadable) as engine:
        engine.create_topic("other")
    (unreadable / "meta.properties").write_text("version=99\n")
    code, rows, _ = stratalog("recover", filled, unreadable)
    errors = {row["topic"]: row["error"] for row in rows}
    assert (code, [topic for topic, error in errors.items() if error]) == (1, ["other"])
    assert "meta.properties has version '99'" in str(errors["other"])


def test_a_directory_whose_lock_file_cannot_be_opened_does_not_stop_the_recovery_of_others(
    stratalog: Call, filled: Path, tmp_path: Path
) -> None:
    unavailable = tmp_path / "other"
    with open_engine(unavailable) as engine:
        engine.create_topic("other")
    (unavailable / ".lock").unlink()
    (unavailable / ".lock").mkdir()
    code, rows, _ = stratalog("recover", filled, unavailable)
    errors = {row["topic"]: row["error"] for row in rows}
    assert (code, [topic for topic, error in errors.items() if error]) == (1, ["other"])
