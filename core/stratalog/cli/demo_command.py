"""``stratalog demo``: offload, evict and read back real logs, and measure the costs."""

from __future__ import annotations

import contextlib
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from importlib import resources
from pathlib import Path
from typing import Final

import click

from stratalog.cli.options import json_option
from stratalog.cli.output import Output, size_text
from stratalog.engine.engine import Engine
from stratalog.engine.open_engine import open_engine
from stratalog.env import Env
from stratalog.errors import BucketNotFoundError
from stratalog.model.records import Record
from stratalog.reading.open_reader import open_reader
from stratalog.spi.commands import tier_option
from stratalog.testing.s3 import local_s3
from stratalog.tier.store.requests import StoreMetrics

KAFKA_ARCHIVE: Final = "kafka-4.1.0.tar.xz"
KAFKA_FOLDER: Final = "kafka-4.1.0"
OWN_TOPIC: Final = "demo"
OWN_PARTITIONS: Final = 2
OWN_SEGMENT_BYTES: Final = 16 << 20
RECORDS_AT_ONCE: Final = 5_000
START_MS: Final = 1_700_000_000_000
EVICT_AT_ONCE: Final[Mapping[str, object]] = {
    "retention.ms": -1,
    "local.retention.bytes": 0,
    "file.delete.delay.ms": 0,
    "remote.storage.enable": True,
}


class DemoMismatchError(Exception):
    """Records that were read back differ from the original records."""


@dataclass(slots=True)
class DemoStep:
    """One step of the demo, a row in the table of results: its duration, number of records, size and requests."""

    name: str
    seconds: float = 0.0
    records: int = 0
    size_bytes: int = 0
    requests: StoreMetrics = field(default_factory=StoreMetrics)

    @property
    def rate(self) -> float | None:
        """Log data of the step in MB (10^6 bytes) a second; None if the step has no data."""
        return self.size_bytes / 1e6 / self.seconds if self.size_bytes and self.seconds else None

    def counts(self) -> dict[str, int]:
        """Return the number of requests to the store by kind, without kinds that were not used."""
        count_by_kind = {field.name: getattr(self.requests, field.name).requests for field in fields(self.requests)}
        return {kind: count for kind, count in count_by_kind.items() if count}

    def row(self, *, as_json: bool) -> dict[str, object]:
        """Return the step as a JSON object, or as a row of the table for people."""
        row: dict[str, object] = {"step": self.name, "seconds": self.seconds}
        if as_json:
            row |= {"records": self.records, "bytes": self.size_bytes, "MB_per_second": self.rate}
            return {**row, "requests": self.counts()}
        row |= {"records": self.records or None, "log": size_text(self.size_bytes), "MB/s": self.rate}
        return {**row, "requests": ", ".join(f"{count} {kind}" for kind, count in self.counts().items())}


@click.command()
@click.option("--tier", metavar="URI", help="Object store to use instead of the local S3 server that the demo starts.")
@tier_option
@click.option("--keep", is_flag=True, help="Keep the demo's directory, and print commands that show its contents.")
@click.option(
    "--records", default=1_000_000, type=click.IntRange(1),
    help="Number of records that the demo appends to a topic of its own.",
)  # fmt: skip
@json_option
def demo(output: Output, *, tier: str | None, tier_options: Mapping[str, object], keep: bool, records: int) -> int:
    """Move a Kafka broker's log directory to S3, and read it back. Then append, move and read back a million records.

    The exit code is 1 if a record that is read back differs from the original record.
    """
    with contextlib.ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="stratalog-demo-"))
        if not keep:
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
        uri, options = tier, tier_options
        if uri is None:
            if options:
                raise click.UsageError("--tier-option needs --tier URI")
            output.note("starting a local S3 server")
            server = stack.enter_context(local_s3())
            uri, options = server.uri("demo"), server.options
        uri = uri.rstrip("/") + f"/{folder.name}"
        if uri.startswith("file://"):  # the folder is the bucket, and a store does not create its bucket
            _make_bucket(Path(uri.removeprefix("file://")))
        run = DemoRun(output, folder, uri, options)
        try:
            run.move_kafka_directory()
            run.append_and_read_back(records)
        except DemoMismatchError as error:
            output.note(f"FAILED: {error}")
            return 1
        run.report(keep=keep, is_local=tier is None)
    return 0


class DemoRun:
    """One run of the demo: its folder, its tier, and the measurements so far."""

    def __init__(self, output: Output, folder: Path, uri: str, options: Mapping[str, object]) -> None:
        self._output, self._folder, self._uri, self._options = output, folder, uri, options
        self._clock = Env().clock
        self._steps: list[DemoStep] = []
        self._logs: list[tuple[object, ...]] = []

    # --- move a Kafka directory ------------------------------------------------------------------------------------

    def move_kafka_directory(self) -> None:
        """Offload and evict a broker's directory, and read it back; raise DemoMismatchError if a record differs."""
        directory = self._unpack()
        with self._engine(directory) as engine:
            with self._step("read the Kafka directory", engine) as step:
                before = {name: list(engine.log(*name).records()) for name in engine.partitions()}
                step.records = sum(map(len, before.values()))
                step.size_bytes = _log_bytes(engine)
            self._tier_and_evict(engine)
            with self._step("read local disk and the bucket as one log", engine) as step:
                for name, records in before.items():
                    _compare(str(name), records, list(engine.log(*name).records()))
                step.records, step.size_bytes = sum(map(len, before.values())), _log_bytes(engine)
            self._note_logs(engine)
        self._output.note(f"{step.records:,} records of {len(before)} partitions are the same in every field")

    def _unpack(self) -> Path:
        archive = resources.files("stratalog.cli") / "demo_data" / KAFKA_ARCHIVE
        with archive.open("rb") as file, tarfile.open(fileobj=file, mode="r:xz") as tar:
            tar.extraction_filter = getattr(tarfile, "data_filter", None)  # missing in Python before 3.11.4
            tar.extractall(self._folder)  # noqa: S202 - our own archive
        return self._folder / KAFKA_FOLDER

    # --- append new records -----------------------------------------------------------------------------------------

    def append_and_read_back(self, count: int) -> None:
        """Append, offload and read back ``count`` records; raise DemoMismatchError if a record differs."""
        with self._engine(self._folder / "own") as engine:
            settings = {"segment.bytes": OWN_SEGMENT_BYTES}
            engine.create_topic(OWN_TOPIC, partitions=OWN_PARTITIONS, config=settings)
            with self._step(f"append {count:,} records", engine) as step:
                with self._output.progress("appending", count) as bar:
                    for number in range(0, count, RECORDS_AT_ONCE):
                        batch = [_record(index) for index in range(number, min(count, number + RECORDS_AT_ONCE))]
                        partition = number // RECORDS_AT_ONCE % OWN_PARTITIONS
                        engine.log(OWN_TOPIC, partition).append(batch)
                        bar.advance(len(batch))
                engine.flush()
                step.records, step.size_bytes = count, _log_bytes(engine)
            for partition in range(OWN_PARTITIONS):
                engine.log(OWN_TOPIC, partition).roll()
            self._tier_and_evict(engine)
            self._note_logs(engine)
        self._read_bucket(count)

    def _read_bucket(self, count: int) -> None:
        began_ns = self._clock.monotonic_ns()
        with open_reader(self._uri, tier_options=self._options) as reader:
            record_count = size_bytes = 0
            with self._output.progress("reading the bucket", count) as bar:
                for partition in reader.topics()[OWN_TOPIC].partitions:
                    log = reader.log(OWN_TOPIC, partition)
                    size_bytes += sum(segment.size_bytes for segment in log.segments())
                    numbers = _numbers(partition, count)
                    for columns in log.columns():
                        expected = [_value(next(numbers)) for _ in range(columns.count)]
                        if columns.values() != expected:
                            raise DemoMismatchError(f"{log.name} differs at offset {columns.offset[0]} and after it")
                        record_count += columns.count
                        bar.advance(columns.count)
            assert reader.tier is not None
            requests = reader.tier.metrics().store
        if record_count != count:
            raise DemoMismatchError(f"{count:,} records were appended, {record_count:,} came back from the bucket")
        seconds = (self._clock.monotonic_ns() - began_ns) / 1e9
        self._steps.append(DemoStep("read the bucket alone", seconds, record_count, size_bytes, requests))
        self._output.note(f"{record_count:,} records came back from the bucket alone, each with the value it had")

    # --- helpers ----------------------------------------------------------------------------------------------------

    def _engine(self, directory: Path) -> Engine:
        return open_engine(directory, tier=self._uri, tier_options=self._options, topic_defaults=EVICT_AT_ONCE)

    def _tier_and_evict(self, engine: Engine) -> None:
        with self._step("offload closed segments", engine) as step:
            results = engine.offload()
            step.size_bytes = sum(result.size_bytes for result in results)
        with self._step("evict them locally", engine) as step:
            step.size_bytes = sum(result.evicted_bytes for result in engine.apply_retention())

    @contextlib.contextmanager
    def _step(self, name: str, engine: Engine) -> Iterator[DemoStep]:
        tier = engine.tier
        assert tier is not None
        requests, began = tier.metrics().store, self._clock.monotonic_ns()
        self._output.note(name)
        step = DemoStep(name)
        yield step
        step.seconds = (self._clock.monotonic_ns() - began) / 1e9
        step.requests = tier.metrics().store - requests
        self._steps.append(step)

    def _note_logs(self, engine: Engine) -> None:
        for name in engine.partitions():
            log = engine.log(*name)
            offsets, segments = log.offsets(), log.segments()
            local = [segment.size_bytes for segment in segments if segment.is_local]
            remote = [segment.size_bytes for segment in segments if segment.is_remote]
            sizes = (len(local), sum(local), len(remote), sum(remote))
            self._logs.append((str(name), offsets.log_end - offsets.log_start, *sizes))

    def report(self, *, keep: bool, is_local: bool) -> None:
        """Print a table of the logs and a table of the steps, and commands that show more."""
        columns = ("partition", "offsets", "local_segments", "local_bytes", "remote_segments", "remote_bytes")
        self._output.table("partitions", columns, self._logs)
        rows = [step.row(as_json=self._output.as_json) for step in self._steps]
        self._output.table("steps", tuple(rows[0]), [tuple(row.values()) for row in rows])
        if keep:
            folder_bytes = sum(path.stat().st_size for path in self._folder.rglob("*") if path.is_file())
            self._output.line(f"kept: {self._folder} ({size_text(folder_bytes)})")
            self._output.line(f"show its contents: stratalog topics list --dir {self._folder / 'own'}")
            self._output.line(f"              stratalog dump {self._folder / KAFKA_FOLDER}/txn-0/*.log --deep")
            if is_local:
                self._output.line("the local S3 server and its bucket are gone; --tier URI uses a store that stays")
        if not is_local:
            self._output.line(f"the tier stays; show its contents: stratalog topics list --tier {self._uri}")
        elif not keep:
            self._output.line(
                "to keep the directory: stratalog demo --keep; to use a real store: stratalog demo --tier URI"
            )


def _record(number: int) -> Record:
    return Record(timestamp_ms=START_MS + number, key=b"%d" % (number % 1000), value=_value(number))


def _value(number: int) -> bytes:
    return b"%012d-" % number * 8  # 104 bytes, different for each number


def _numbers(partition: int, count: int) -> Iterator[int]:
    for start in range(partition * RECORDS_AT_ONCE, count, RECORDS_AT_ONCE * OWN_PARTITIONS):
        yield from range(start, min(count, start + RECORDS_AT_ONCE))


def _compare(name: str, before: list[Record], after: list[Record]) -> None:
    if before == after:
        return
    if len(before) != len(after):
        raise DemoMismatchError(f"{name}: {len(before)} records before, {len(after)} after")
    index = next(index for index, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1])
    raise DemoMismatchError(f"{name}: offset {before[index].offset} differs")


def _log_bytes(engine: Engine) -> int:
    return sum(segment.size_bytes for name in engine.partitions() for segment in engine.log(*name).segments())


def _make_bucket(folder: Path) -> None:
    try:
        folder.mkdir()
    except OSError as error:
        raise BucketNotFoundError(f"folder {folder} cannot be created: {error.strerror}", str(folder.parent)) from error
