"""Test bed for one log in a folder of its own, without an engine: open it, crash it, open it again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from stratalog.config.engine_settings import Limits
from stratalog.config.settings_sources import Settings
from stratalog.config.topic import TopicConfig
from stratalog.env import Env, PosixVfs, Vfs
from stratalog.env.clock import ManualClock
from stratalog.env.closing import Closeable
from stratalog.env.progress import Progress, no_progress
from stratalog.log.load.loaded_log import LoadedLog, LoadRequest
from stratalog.log.load.log_loader import load
from stratalog.log.log import Log
from stratalog.log.open_log import LogEnvironment, OpenRequest
from stratalog.log.read.log_reader import LogReader
from stratalog.log.state.bounds import make_view
from stratalog.log.state.log_settings import LogSettings
from stratalog.model.batches import Buffer, TimestampType
from stratalog.model.events import Event
from stratalog.model.messages.control import ControlType, EndMarker
from stratalog.model.names import LOG_SUFFIX, TopicId, TopicPartition, partition_folder, segment_file
from stratalog.model.offsets import Watermark
from stratalog.model.records import Record
from stratalog.reading.component_host import ComponentHost
from stratalog.reading.reader import StaticLog
from stratalog.registry.registry import Registry
from stratalog.segment.components import Components
from stratalog.segment.control_batches import CONTROL_MAGIC, control_batch
from stratalog.spi.formats import BatchHeader
from stratalog.spi.segment_store import LogFiles

LOG: Final = TopicPartition("t", 0)
TOPIC_ID: Final = TopicId("AAAAAAAAAAAAAAAAAAAAAQ")


def records(count: int, *, start: int = 0, timestamp_ms: int = 1_700_000_000_000, value_bytes: int = 0) -> list[Record]:
    """Return records with the keys ``k0``, ``k1``, ... from ``start`` on; their timestamps are a millisecond apart."""
    return [
        Record(timestamp_ms=timestamp_ms + index, key=b"k%d" % index, value=b"v%d" % index + b"." * value_bytes)
        for index in range(start, start + count)
    ]


def offsets_in(log: LogReader) -> list[int]:
    """Return the offsets of all records of a log that ``records`` filled; check that each has the key of its offset."""
    records = list(log.records())
    assert [record.key for record in records] == [b"k%d" % record.offset for record in records]
    return [record.offset for record in records]


@dataclass(slots=True)
class LogBed(Closeable):
    """Log directory with one log, the installed components, and a clock that moves only when the test moves it.

    Leaving the context manager closes everything without a clean shutdown.

    Attributes:
        directory: the log directory; created if missing.
        registry: the installed components.
        topic: settings of the topic.
        limits: limits of the components.
        clock: clock that the test moves.
        files_port: file system.
        log_start: checkpointed log start offset; None if there is none.
        recovery_point: checkpointed recovery point.
        events: events that listeners received.
        watermark: rule that moves the high watermark.
    """

    directory: Path
    registry: Registry
    topic: TopicConfig = field(default_factory=TopicConfig)
    limits: Limits = field(default_factory=Limits)
    clock: ManualClock = field(default_factory=ManualClock)
    files_port: Vfs = field(default_factory=PosixVfs)
    events: list[Event] = field(default_factory=list)
    log_start: int | None = None
    recovery_point: int = 0
    watermark: Watermark = Watermark.WRITTEN
    _host: ComponentHost | None = None
    _opened: list[Log | StaticLog] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        """The log's folder."""
        return self.directory / partition_folder(LOG)

    @property
    def host(self) -> ComponentHost:
        """The opened components."""
        if self._host is None:
            self._host = ComponentHost(
                self.registry, Settings(limits=self.limits), Env(clock=self.clock, files=self.files_port)
            )
        return self._host

    @property
    def components(self) -> Components:
        """The components of the log."""
        return self.host.components(self.topic)

    def path(self, base_offset: int, suffix: str = LOG_SUFFIX) -> Path:
        """Return the path of a segment's file."""
        return self.folder / segment_file(base_offset, suffix)

    def names(self) -> list[str]:
        """Return the names of the files in the log's folder."""
        return sorted(path.name for path in self.folder.iterdir())

    def contents(self) -> dict[str, bytes]:
        """Return the bytes of each file in the log's folder, by name."""
        return {path.name: path.read_bytes() for path in sorted(self.folder.iterdir())}

    def write(self, contents: Mapping[str, bytes]) -> None:
        """Replace the files in the log's folder by these files."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in self.folder.iterdir():
            path.unlink()
        for name, data in contents.items():
            (self.folder / name).write_bytes(data)

    def files(self, *, read_only: bool = False) -> LogFiles:
        """Open the log's folder, and create it if it is missing and ``read_only`` is False."""
        store = self.host.segment_store(str(self.directory), read_only=read_only)
        create = not read_only and not self.folder.exists()
        self.directory.mkdir(parents=True, exist_ok=True)
        return store.open_log(partition_folder(LOG), create=create)

    # --- opening -----------------------------------------------------------------------------------------------------

    def load(
        self,
        *,
        clean: bool = True,
        writable: bool = True,
        high_watermark: int | None = None,
        progress: Progress = no_progress,
    ) -> LoadedLog:
        """Load the log; the caller closes the segments."""
        request = LoadRequest(clean, self.recovery_point, self.log_start, high_watermark, writable)
        return load(self.files(read_only=not writable), self.components, self.topic, request, progress)

    def open(self, *, clean: bool = True, high_watermark: int | None = None) -> Log:
        """Open the log for writing, after closing an earlier one."""
        self.close()
        log = Log(
            OpenRequest(
                LOG, TOPIC_ID, self.files(), self.load(clean=clean, high_watermark=high_watermark), high_watermark
            ),
            LogSettings(self.topic, self.components),
            LogEnvironment(notify=self.events.append, watermark=self.watermark, store_bounds=self._checkpoint),
        )
        self._opened.append(log)
        return log

    def _checkpoint(self) -> None:
        """Keep the bounds of the log as its next checkpoints, as a log directory does."""
        for log in self._opened:
            self.recovery_point, self.log_start = log.offsets().recovery_point, log.offsets().log_start

    def open_reader(self, *, clean: bool = True, high_watermark: int | None = None) -> StaticLog:
        """Open the log for reading only."""
        log_state = self.load(clean=clean, writable=False, high_watermark=high_watermark)
        watermark = log_state.log_end if high_watermark is None else high_watermark
        view = make_view(
            LOG, log_state, self.components, high_watermark=watermark, remote=None, damage=log_state.damage
        )
        log = StaticLog(view, TOPIC_ID)
        self._opened.append(log)
        return log

    def crash(self) -> None:
        """Release all files without a clean shutdown; written bytes stay, including reserved space."""
        contents = self.contents()
        for log in self._opened:
            for segment in log.view().segments:
                segment.close()
        self._opened.clear()
        self.write(contents)

    def close(self) -> None:
        """Close everything that is open; a second call does nothing."""
        for log in self._opened:
            log.close()
        self._opened.clear()
        if self._host is not None:
            self._host.close()
            self._host = None

    # --- encoded batches ---------------------------------------------------------------------------------------------

    def batch(
        self,
        offset: int,
        written: Iterable[Record],
        *,
        magic: int = 2,
        codec: str | None = None,
        timestamp_type: TimestampType = TimestampType.CREATE_TIME,
        producer: tuple[int, int, int] = (-1, -1, -1),
        transactional: bool = False,
        control: bool = False,
        leader_epoch: int = 0,
    ) -> bytes:
        """Return one encoded batch.

        Args:
            offset: offset of the first record.
            written: the records; their own offsets are ignored.
            magic: magic of the record format.
            codec: name of a codec, or None.
            timestamp_type: LOG_APPEND_TIME uses the first record's timestamp for all records.
            producer: producer id, producer epoch and base sequence.
            transactional: True if the batch belongs to a transaction.
            control: True if the batch contains markers.
            leader_epoch: leader epoch of the batch.
        """
        records = list(written)
        header = BatchHeader(
            base_offset=offset,
            leader_epoch=leader_epoch,
            timestamp_type=timestamp_type,
            append_time_ms=records[0].timestamp_ms,
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=producer[2],
            transactional=transactional,
            control=control,
        )
        compressor = None if codec is None else self.components.codecs.by_name(codec)
        return bytes(self.components.formats.of(magic, "", 0).encode(records, header, compressor, None))

    def marker(
        self, offset: int, producer_id: int, kind: ControlType, *, producer_epoch: int = 0, coordinator_epoch: int = 0
    ) -> bytes:
        """Return the control batch that ends a transaction."""
        batch = control_batch(
            self.components.formats.of(CONTROL_MAGIC, "", 0),
            EndMarker(kind, coordinator_epoch),
            timestamp_ms=1_700_000_000_000,
            base_offset=offset,
            leader_epoch=0,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
        )
        return bytes(batch)

    def write_segment(self, base_offset: int, batches: Sequence[Buffer]) -> None:
        """Write a ``.log`` file without indexes."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.path(base_offset).write_bytes(b"".join(batches))
