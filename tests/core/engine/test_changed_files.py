"""Files that another process truncates, empties, replaces or deletes under each kind of reader."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Final

import pytest

from stratalog import Engine, Reader, Record, TopicPartition, open_engine, open_reader
from stratalog.cli.app import run
from stratalog.errors import StorageError
from stratalog.log.read.log_reader import LogReader
from stratalog.model.names import CLEAN_SHUTDOWN_FILE
from stratalog.reading import OffsetRange, ReadSource, plan_splits, scan

RECORDS: Final = 120
STEPS: Final = 300_000  # calls of library functions; the longest of these readers needs about a tenth
HUNG_SECONDS: Final = 600  # if even the calls end, the process ends after this time with a traceback
ORDERS: Final = TopicPartition("orders", 0)
INDEXES: Final = (".index", ".timeindex", ".txnindex")

Harm = Callable[[], None]


class EndlessError(BaseException):
    """A reader took more steps than it can need. No code of the library catches this error."""


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """Raise EndlessError if the library makes more than STEPS calls within the block.

    Unlike a time limit, this limit does not depend on the machine.
    """
    remaining = STEPS

    def count(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal remaining
        remaining -= event.endswith("call") and frame.f_globals.get("__name__", "").startswith("stratalog")
        if remaining < 0:
            raise EndlessError

    before = sys.getprofile()
    faulthandler.dump_traceback_later(HUNG_SECONDS, exit=True)
    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(before)
        faulthandler.cancel_dump_traceback_later()


# --- the files that are read -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """A log whose older segments are in a tier, and its disk cache."""

    root: Path

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def folder(self) -> Path:
        return self.data / "orders-0"

    @property
    def tier(self) -> str:
        return f"file://{self.root / 'tier'}"

    @property
    def config(self) -> dict[str, object]:
        return {"tier.cache.dir": str(self.root / "cache"), "limits.read.bytes": 16384}

    def engine(self) -> Engine:
        return open_engine(self.data, tier=self.tier, config=self.config)

    def reader(self) -> Reader:
        return open_reader(self.data, tier=self.tier, config=self.config)

    def file(self, name: str) -> Path:
        """Return the file to change.

        The file is of a closed segment that has all index files, of the active segment, or of the tier.
        """
        if name == "active .log":
            return max(self.folder.glob("*.log"))
        if name.startswith("."):
            kinds = (*INDEXES, ".snapshot")
            closed = sorted(self.folder.glob("*.log"))[:-1]
            return next(
                path.with_suffix(name)
                for path in reversed(closed)
                if all(_size(path.with_suffix(kind)) for kind in kinds)
            )
        if name == "object":
            return sorted((self.root / "tier").rglob("*.seg"))[1]
        if name == "root":
            return max((self.root / "tier").rglob("*/manifest/*"))
        cache_files = [
            path for path in (self.root / "cache").rglob("*") if path.is_file() and path.stat().st_size > 1000
        ]
        return max(cache_files, key=lambda path: path.stat().st_size)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Place:
    place = Place(tmp_path_factory.mktemp("original"))
    (place.root / "tier").mkdir()
    topic = {
        "segment.bytes": 4000,
        "index.interval.bytes": 200,
        "retention.ms": -1,
        "remote.storage.enable": True,
        "local.retention.bytes": 12_000,
        "file.delete.delay.ms": 0,
    }
    with place.engine() as engine:
        engine.create_topic("orders", config=topic)
        log = engine.log(*ORDERS)
        with engine.producer(transactional_id="t", batch_size_bytes=400) as producer:
            for number in range(0, RECORDS, 6):
                producer.begin_transaction()
                for part in range(number, number + 6):
                    producer.send("orders", key=b"k%d" % (part % 7), value=b"%d" % part * 60, timestamp_ms=1000 + part)
                producer.flush()
                producer.abort_transaction() if number % 4 else producer.commit_transaction()
        engine.offload()
        engine.apply_retention()
        assert log.offsets().local_log_start > 20
    for state in place.data.glob("__transaction_state-*"):  # without it, copies take less time
        shutil.rmtree(state)
    with place.reader() as reader:
        assert sum(1 for _ in reader.log(*ORDERS).records()) == RECORDS
    return place


# --- changes of files ------------------------------------------------------------------------------------------------


class ChangeOnce:
    """Function that changes a file at its first call only."""

    def __init__(self, harm: Callable[[Path], None], path: Path) -> None:
        self._harm, self._path, self.is_done = harm, path, False

    def __call__(self) -> None:
        if not self.is_done:
            self.is_done = True
            self._harm(self._path)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def replace(path: Path) -> None:
    replacement = path.with_suffix(".other")
    replacement.write_bytes(bytes(range(256)) * (path.stat().st_size // 256 + 1))
    replacement.replace(path)


def delete(path: Path) -> None:
    path.unlink()


# --- readers; each yields once after its begin, then continues --------------------------------------------------------


def read_records(log: LogReader) -> Iterator[None]:
    records = log.records(isolation="read_committed")
    next(records)
    yield
    for _ in records:
        pass


def read_columns(log: LogReader) -> Iterator[None]:
    columns = log.columns()
    next(columns)
    yield
    for _ in columns:
        pass


def read_arrow(log: LogReader) -> Iterator[None]:
    yield
    if find_spec("pyarrow") is not None:
        log.to_arrow()


def read_batches(log: LogReader) -> Iterator[None]:
    offset, end = log.offsets().log_start, log.offsets().last_stable
    while offset < end:
        with log.fetch(offset, 700, "read_committed") as fetched:
            assert fetched.next_offset > offset
            offset = fetched.next_offset
        yield


def send_batches(log: LogReader) -> Iterator[None]:
    offset, end = log.offsets().log_start, log.offsets().high_watermark
    near_end, far_end = socket.socketpair()
    with near_end, far_end:
        while offset < end:
            with log.transfer(offset, 2000) as sending:
                yield
                assert sending.next_offset > offset
                offset = sending.next_offset
                sending.send(near_end)
                assert len(far_end.recv(1 << 20)) == sending.size_bytes


def find_times(log: LogReader) -> Iterator[None]:
    for timestamp_ms in range(1000, 1001 + RECORDS, 9):
        log.offset_for_timestamp(timestamp_ms)
        yield


def find_keys(log: LogReader) -> Iterator[None]:
    records = log.records_with_key(b"k3")
    next(records)
    yield
    for _ in records:
        pass


READERS: Final = (read_records, read_columns, read_arrow, read_batches, send_batches, find_times, find_keys)


def read_all(log: LogReader, harm: Harm) -> None:
    """Start all readers of a log, change a file, then run each reader to its end."""
    readers = [read(log) for read in READERS]
    for reader in readers:
        next(reader)
    harm()
    for reader in readers:
        with bounded(), contextlib.suppress(StorageError):
            for _ in reader:
                pass


def in_directory(place: Place, harm: Harm) -> None:
    with place.reader() as reader:
        read_all(reader.log(*ORDERS), harm)


def in_engine(place: Place, harm: Harm) -> None:
    with place.engine() as engine:
        read_all(engine.log(*ORDERS), harm)


def in_tier(place: Place, harm: Harm) -> None:
    with open_reader(place.tier, config=place.config) as reader:
        read_all(reader.log(*ORDERS), harm)


def consume(place: Place, harm: Harm) -> None:
    with place.engine() as engine:
        consumer = engine.consumer(topics=["orders"], auto_offset_reset="earliest")
        assert consumer.poll(3)
        harm()
        while consumer.poll(50):
            pass


def recover(place: Place, harm: Harm) -> None:
    (place.data / CLEAN_SHUTDOWN_FILE).unlink()
    harm()
    with place.engine() as engine:
        for _ in engine.log(*ORDERS).records():
            pass


def keep(place: Place, harm: Harm) -> None:
    """Run the duties of an engine: compaction, offload, retention, extra indexes."""
    with place.engine() as engine:
        engine.alter_topic("orders", {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.01})
        log = engine.log(*ORDERS)
        for number in range(20):
            log.append([Record(key=b"k%d" % (number % 7), value=b"%d" % number * 60)])
        log.roll()
        harm()
        for duty in (engine.run_cleaner, engine.offload, engine.apply_retention, engine.make_extra_indexes):
            with contextlib.suppress(StorageError):
                duty()


def cut_back(place: Place, harm: Harm) -> None:
    with place.engine() as engine:
        log = engine.log(*ORDERS)
        log.lead(log.leader_epoch + 1)
        log.append([Record(value=b"%d" % number * 60) for number in range(20)])
        harm()
        log.truncate_to(log.offsets().log_end - 5)


def scan_splits(place: Place, harm: Harm) -> None:
    pytest.importorskip("pyarrow", reason="the extra arrow is not installed")
    source = ReadSource(str(place.data), tier=place.tier)
    with source.open(peek=True) as reader:
        splits = plan_splits(reader, [OffsetRange(ORDERS, 0, 1 << 62)], split_bytes=3000)
        harm()
        with contextlib.suppress(StorageError):
            plan_splits(reader, [OffsetRange(ORDERS, 0, 1 << 62)], split_bytes=3000)
    for split in splits:
        for _ in scan(source, split, on_damage=lambda _: None, on_loss=lambda _: None):
            pass


def verify(place: Place, harm: Harm) -> None:
    harm()
    run(["verify", str(place.data), "--json"])


def scrub(place: Place, harm: Harm) -> None:
    harm()
    run(["verify", place.tier, "--deep", "--json"])


def dump(place: Place, harm: Harm) -> None:
    harm()
    for path in sorted(place.folder.iterdir()):
        if path.suffix in {".log", ".index", ".timeindex", ".txnindex", ".snapshot"}:
            run(["dump", str(path), "--json"])


LOCAL: Final = (".log", "active .log", *INDEXES, ".snapshot")
REMOTE: Final = ("object", "root", "cached")
JOBS: Final[dict[Callable[[Place, Harm], None], tuple[str, ...]]] = {
    in_directory: (*LOCAL, *REMOTE),
    in_engine: (*LOCAL, *REMOTE),
    in_tier: REMOTE,
    consume: (".log", "active .log", ".index", "object"),
    recover: LOCAL,
    keep: (*LOCAL, *REMOTE),
    cut_back: (".log", "active .log", ".index"),
    scan_splits: (".log", "active .log", ".index", "object"),
    verify: LOCAL,
    scrub: ("object", "root"),
    dump: (".log", *INDEXES, ".snapshot"),
}


@pytest.mark.parametrize("harm", [cut, empty, replace, delete])
@pytest.mark.parametrize("job", JOBS)
@pytest.mark.long
def test_a_reader_ends_or_raises_whatever_becomes_of_the_files(
    job: Callable[[Place, Harm], None], harm: Callable[[Path], None], original: Place, tmp_path: Path
) -> None:
    """A reader of a truncated file once read the same empty range for ever."""
    for number, file_name in enumerate(JOBS[job]):
        place = Place(Path(shutil.copytree(original.root, tmp_path / str(number))))
        once = ChangeOnce(harm, place.file(file_name))
        with bounded(), contextlib.suppress(StorageError):
            job(place, once)
        assert once.is_done, f"{file_name} was not harmed"
        shutil.rmtree(place.root)
