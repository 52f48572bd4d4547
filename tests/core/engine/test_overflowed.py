"""A directory of an old broker with segments that span 2^31 or more offsets, and all operations on such a directory."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from log_bed import LOG, TOPIC_ID, LogBed
from stratalog import Record, open_engine, open_reader
from stratalog.cli.app import run
from stratalog.epochs.checkpoint import format_offsets
from stratalog.log.folder.directory_state import format_topic_id
from stratalog.model.names import (
    CLEAN_SHUTDOWN_FILE,
    HIGH_WATERMARKS_FILE,
    LOG_SUFFIX,
    PARTITION_METADATA_FILE,
    RECOVERY_POINTS_FILE,
)
from stratalog.reading import OffsetRange, ReadSource, plan_splits, scan

SPAN = 1 << 31
STARTS = (0, 5, SPAN + 100, SPAN + 110, 3 * SPAN)
END = 4 * SPAN  # base offset of the next segment
BASES = [0, SPAN + 100, 3 * SPAN, END]


def records_at(start: int, count: int = 3) -> list[Record]:
    return [
        Record(key=b"k%d" % (offset % 4), value=b"%d" % offset, timestamp_ms=1_000 + offset % 500)
        for offset in range(start, start + count)
    ]


OFFSETS = [at for start in (*STARTS, END) for at in range(start, start + 3)]


@pytest.fixture
def directory(bed: LogBed) -> Path:
    """Return a directory that was stopped cleanly, without index files.

    Its log has a segment that must be split in three, and one later segment.
    """
    bed.write_segment(0, [bed.batch(start, records_at(start)) for start in STARTS])
    bed.write_segment(END, [bed.batch(END, records_at(END))])
    for name in (RECOVERY_POINTS_FILE, HIGH_WATERMARKS_FILE):
        (bed.directory / name).write_bytes(format_offsets({LOG: END + 3}))
    (bed.directory / CLEAN_SHUTDOWN_FILE).write_bytes(b"")
    (bed.folder / PARTITION_METADATA_FILE).write_bytes(format_topic_id(TOPIC_ID))
    return bed.directory


def bases(directory: Path) -> list[int]:
    return sorted(int(path.stem) for path in (directory / "t-0").glob(f"*{LOG_SUFFIX}"))


def contents(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


def offsets(records: Sequence[Record]) -> list[int]:
    assert all(record.value == b"%d" % record.offset for record in records)
    return [record.offset for record in records]


def test_an_engine_splits_an_overflowed_segment_and_continues(directory: Path) -> None:
    with open_engine(directory) as engine:
        log = engine.log("t", 0)
        assert offsets(list(log.records())) == OFFSETS
        assert log.append([Record(value=b"%d" % (END + 3))]).base_offset == END + 3
    assert bases(directory)[:4] == BASES
    with open_reader(directory) as reader:
        assert offsets(list(reader.log("t", 0).records())) == [*OFFSETS, END + 3]


@pytest.mark.parametrize("split_bytes", [1, 200, None])
def test_splits_of_a_plan_are_read_from_the_one_file(directory: Path, split_bytes: int | None) -> None:
    pytest.importorskip("pyarrow", reason="the extra arrow is not installed")
    before = contents(directory)
    source = ReadSource(str(directory))
    with source.open(peek=True) as reader:
        splits = plan_splits(reader, [OffsetRange(LOG, 0, 1 << 62)], split_bytes=split_bytes)
    read_offsets = [
        offset for split in splits for part in scan(source, split) for offset in part.batch.column("offset").to_pylist()
    ]
    assert read_offsets == OFFSETS
    assert contents(directory) == before


def test_a_plan_made_before_the_split_is_read_after_it(directory: Path) -> None:
    pytest.importorskip("pyarrow", reason="the extra arrow is not installed")
    source = ReadSource(str(directory))
    with source.open(peek=True) as reader:
        splits = plan_splits(reader, [OffsetRange(LOG, 0, 1 << 62)], split_bytes=1)
    assert len(splits) > 2
    with open_engine(directory, topic_defaults={"file.delete.delay.ms": 0}) as engine:
        engine.run_duties()
    read_offsets = [
        offset for split in splits for part in scan(source, split) for offset in part.batch.column("offset").to_pylist()
    ]
    assert read_offsets == OFFSETS


def test_a_tier_gets_the_pieces(directory: Path) -> None:
    uri = f"memory://{directory.parent.name}"
    with open_engine(directory, tier=uri) as engine:
        engine.offload()
        segments = [segment for segment in engine.log("t", 0).segments() if segment.is_remote]
        assert [segment.base_offset for segment in segments] == BASES[:3]
    with open_reader(uri) as reader:
        assert offsets(list(reader.log("t", 0).records())) == OFFSETS[:-3]


def test_an_archive_gets_the_pieces_and_leaves_the_directory_alone(
    directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(directory)
    (tmp_path / "archive").mkdir()
    uri = f"file://{tmp_path}/archive"
    assert run(["archive", str(directory), uri]) == 0
    capsys.readouterr()
    assert contents(directory) == before
    with open_reader(uri) as reader:
        log = reader.log("t", 0)
        assert [segment.base_offset for segment in log.segments()] == BASES[:3]
        assert offsets(list(log.records())) == OFFSETS[:-3]


def test_compaction_finds_the_pieces(directory: Path) -> None:
    """Compaction must not merge segments that together span 2^31 or more offsets."""
    config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.0}
    with open_engine(directory, topic_defaults=config) as engine:
        engine.alter_topic("t", config)
        (result,) = engine.run_cleaner()
        assert result.error is None
        records = list(engine.log("t", 0).records())
    latest = {record.key: offset for offset in OFFSETS[:-3] for record in records_at(offset, 1)}
    assert offsets(records) == sorted({*latest.values(), *OFFSETS[-3:]})
    assert bases(directory) == BASES


def verify(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, list[dict[str, object]]]:
    code = run(["verify", *map(str, arguments), "--json"])
    output = capsys.readouterr().out
    return code, [item for line in output.splitlines() if "problem" in (item := json.loads(line))]


@pytest.mark.parametrize("deep", [[], ["--deep"]])
def test_verify_reports_an_overflowed_segment_and_repairs_it(
    directory: Path, bed: LogBed, deep: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    path, before = bed.path(0), contents(directory)
    code, problems = verify(capsys, directory, *deep)
    assert code == 1
    (problem,) = [item for item in problems if item["file"] == str(path)]
    position = 2 * len(bed.batch(0, records_at(0)))
    assert (problem["problem"], problem["position"]) == ("overflow", position)
    assert contents(directory) == before
    assert verify(capsys, directory, "--repair")[0] == 0
    assert verify(capsys, directory) == (0, [])
    assert bases(directory) == BASES
    assert not list((directory / "t-0").glob("*.deleted"))


def test_verify_names_the_place_of_damage_in_the_file(
    directory: Path, bed: LogBed, capsys: pytest.CaptureFixture[str]
) -> None:
    data = bytearray(bed.path(0).read_bytes())
    data[-1] ^= 1
    bed.path(0).write_bytes(data)
    _, problems = verify(capsys, directory)
    position = sum(len(bed.batch(start, records_at(start))) for start in STARTS[:-1])
    assert [(item["file"], item["position"]) for item in problems if item["problem"] == "damage"] == [
        (str(bed.path(0)), position)
    ]
