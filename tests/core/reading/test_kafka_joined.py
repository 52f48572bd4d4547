"""A broker's directory and the folder of its remote segments after leader changes: segments overlap or are missing."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from replication import replicate
from stratalog import Engine, Record, TopicPartition, open_engine, open_reader
from stratalog.env import Env
from stratalog.env.clock import ManualClock
from stratalog.epochs.checkpoint import format_epochs
from stratalog.errors import StorageError
from stratalog.log.log import Log
from stratalog.model.names import TopicId
from stratalog.reading import OffsetRange, ReadSource, plan_splits, scan

pytest.importorskip("pyarrow", reason="the extra arrow is not installed")

NAMES = ("a", "b")
SUFFIXES = ("log", "index", "timeindex", "txnindex")


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[dict[str, Engine]]:
    """Yield two replicas without a tier; ``a`` is the leader."""
    with ExitStack() as stack:
        engines = dict[str, Engine]()
        for name in NAMES:
            config = {"log.dirs": [str(tmp_path / name)], "watermark": "external"}
            engines[name] = stack.enter_context(open_engine(config=config, env=Env(clock=ManualClock())))
            settings = {"segment.bytes": 600, "index.interval.bytes": 0, "file.delete.delay.ms": 0, "retention.ms": -1}
            engines[name].create_topic("t", config=settings)
        log_of(engines["a"]).lead(1)
        log_of(engines["b"]).follow(1)
        yield engines


def log_of(engine: Engine) -> Log:
    return engine.log("t", 0)


def write(engine: Engine, count: int, writer: str) -> None:
    for _ in range(count):
        start = log_of(engine).offsets().log_end
        log_of(engine).append(
            [Record(value=f"{writer} {start + index}".encode().ljust(100, b".")) for index in range(2)]
        )


def catch_up(leader: Engine, follower: Engine) -> None:
    while replicate(log_of(leader), log_of(follower)) or (
        log_of(follower).offsets().high_watermark < log_of(leader).offsets().log_end
    ):
        pass


def moved(engine: Engine, owner: Engine, remote: Path, start: int = 0) -> None:
    """Copy the closed segments of ``engine`` from ``start`` on to ``remote``.

    The names are those of Kafka's LocalTieredStorage.
    """
    log = log_of(engine)
    log.flush()
    topic_id = log_of(owner).topic_id
    assert isinstance(topic_id, TopicId)
    folder = remote / f"t-0-{topic_id}"
    folder.mkdir(parents=True, exist_ok=True)
    for segment in log.view().segments[:-1]:
        if segment.base_offset >= start:
            unique = TopicId.from_uuid(uuid.uuid4())
            name = f"{segment.base_offset:020}"
            for suffix in SUFFIXES:
                source = Path(segment.files.path(f"{name}.{suffix}"))
                if source.exists():
                    (folder / f"{name}-{unique}.{suffix}").write_bytes(source.read_bytes())
            epochs = log.view().epochs.truncate_from_end(segment.end_offset).entries
            (folder / f"{name}-{unique}.leader_epoch_checkpoint").write_bytes(format_epochs(epochs))


def records_of(log: Log) -> list[tuple[int, bytes | None]]:
    return [(record.offset, record.value) for record in log.records(isolation="log_end")]


def evict(folder: Path) -> None:
    """Delete the files of all segments but the last one, as a broker does after their upload."""
    segments = sorted((folder / "t-0").glob("*.log"))
    for path in (folder / "t-0").iterdir():
        if path.stem.isdigit() and path.stem < segments[-1].stem:
            path.unlink()


def check(engine: Engine, folder: Path, remote: Path, expected: list[tuple[int, bytes | None]]) -> None:
    log_of(engine).set_high_watermark(log_of(engine).offsets().log_end)
    engine.close()
    evict(folder)
    before = {path: path.read_bytes() for path in remote.rglob("*") if path.is_file()}
    with open_reader(folder, tier=f"file://{remote}") as reader:
        log = reader.log("t", 0)
        assert log.offsets().local_log_start > 0
        assert [(record.offset, record.value) for record in log.records()] == expected
        for start, _ in expected[1:]:
            assert next(iter(log.records(start))).offset == start
    source = ReadSource(str(folder), tier=f"file://{remote}")
    with source.open() as reader:
        splits = plan_splits(reader, [OffsetRange(TopicPartition("t", 0), 0, len(expected))], min_splits=3)
    offsets = [
        offset for split in splits for piece in scan(source, split) for offset in piece.batch["offset"].to_pylist()
    ]
    assert offsets == [offset for offset, _ in expected]
    assert {path: path.read_bytes() for path in remote.rglob("*") if path.is_file()} == before


def test_segments_of_leaders_that_followed_one_another_overlap(pair: dict[str, Engine], tmp_path: Path) -> None:
    a, b = pair.values()
    write(a, 1, "a")
    catch_up(a, b)
    log_of(b).roll()
    write(a, 8, "a")
    catch_up(a, b)
    moved(a, b, tmp_path / "remote")
    log_of(b).lead(2)
    write(b, 8, "b")
    moved(b, b, tmp_path / "remote", start=6)
    expected = records_of(log_of(b))
    check(b, tmp_path / "b", tmp_path / "remote", expected)


def test_records_of_a_leader_that_was_not_followed_are_left_out(pair: dict[str, Engine], tmp_path: Path) -> None:
    a, b = pair.values()
    write(a, 5, "a")
    catch_up(a, b)
    write(a, 9, "lost")
    moved(a, b, tmp_path / "remote")
    log_of(b).lead(2)
    write(b, 9, "b")
    moved(b, b, tmp_path / "remote", start=8)
    expected = records_of(log_of(b))
    assert len(expected) == 28
    check(b, tmp_path / "b", tmp_path / "remote", expected)


def test_a_gap_between_folder_and_directory_is_reported(pair: dict[str, Engine], tmp_path: Path) -> None:
    a = pair["a"]
    write(a, 9, "a")
    moved(a, a, tmp_path / "remote")
    a.close()
    evict(tmp_path / "a")
    missing = max((tmp_path / "remote").rglob("*.log"))
    end = int(missing.name[:20])
    for path in missing.parent.glob(f"{missing.stem}.*"):
        path.unlink()
    with (
        open_reader(tmp_path / "a", tier=f"file://{tmp_path}/remote") as reader,
        pytest.raises(StorageError, match=f"ends at offset {end}"),
    ):
        reader.log("t", 0)
