"""Check of a log's folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Final

from stratalog.env.progress import OnBytes, uncounted
from stratalog.epochs.epoch_cache import EpochCache
from stratalog.errors import CorruptCheckpointError, CorruptionError, CorruptSnapshotError
from stratalog.log.folder.directory_state import read_topic_id
from stratalog.log.folder.folder import check_file_names, file_names, missing_logs, open_segments, read_epochs
from stratalog.log.load.overflow import find_active_spans, find_closed_spans, pieces_of
from stratalog.log.load.producer_replay import newest_snapshot, replay_table, snapshot_offsets
from stratalog.model.batches import BatchTable
from stratalog.model.names import (
    CLEANED_SUFFIX,
    LOG_SUFFIX,
    PARTITION_METADATA_FILE,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    parse_segment_file,
    segment_file,
)
from stratalog.model.segment_info import AbortedTransaction
from stratalog.producers.snapshot import decode_snapshot
from stratalog.producers.state import ProducerState
from stratalog.segment.components import Components
from stratalog.segment.finding import Finding, FindingKind
from stratalog.segment.framing import Chunk
from stratalog.segment.segment import Segment
from stratalog.segment.segment_check import check_segment, read_stored_indexes
from stratalog.spi.segment_store import LogFiles

_OVERFLOWS: Final = (
    "offsets from here on are too far above the base offset for an index: the next open splits the segment"
)


@dataclass(frozen=True, slots=True)
class CheckpointOffset:
    """An offset of the log in a checkpoint of its directory.

    ``place`` is the path of the checkpoint. ``name`` describes the offset, for example "log start of t-0".
    """

    place: str
    name: str
    offset: int


@dataclass(slots=True)
class LogReport:
    """Result of the check of a log's folder.

    ``batches`` and ``records`` are the numbers of good batches and good records; ``records`` is None unless every
    record was checked. ``size_bytes`` is the size of all segments. ``log_end`` is the exclusive end offset of the good
    part of the last segment. ``known_end`` is the largest offset in a checkpoint, 0 if there is none. ``epochs`` are
    the leader epochs of the batches.
    """

    segments: int = 0
    batches: int = 0
    records: int | None = None
    size_bytes: int = 0
    log_end: int = 0
    known_end: int = 0
    findings: list[Finding] = field(default_factory=list)
    epochs: EpochCache = field(default_factory=EpochCache)


def check_log(
    files: LogFiles,
    components: Components,
    *,
    records: bool = False,
    checkpoints: Sequence[CheckpointOffset] = (),
    was_clean: bool = False,
    on_bytes: OnBytes = uncounted,
) -> LogReport:
    """Check every file of a log's folder. Write nothing, and keep one chunk of a segment in memory at a time.

    Args:
        files: the folder.
        components: the log's components.
        records: True to decompress and decode every record, in addition to the CRC checks.
        checkpoints: the log's offsets in the checkpoints of its directory.
        was_clean: True if the directory was closed cleanly: then a log that ends below a checkpoint has lost its end.
        on_bytes: called with the number of bytes that were checked since the last call.

    Raises:
        LogDirError: a file cannot be read.
    """
    report = LogReport(known_end=max((checkpoint.offset for checkpoint in checkpoints), default=0))
    _check_files(files, components, report, on_bytes, records=records)
    if was_clean:
        for checkpoint in checkpoints:
            if checkpoint.offset > report.log_end:
                text = f"the {checkpoint.name} is {checkpoint.offset}, but the log ends at {report.log_end}"
                report.findings.append(Finding(FindingKind.BOUNDS, checkpoint.place, 0, text))
    return report


def _check_files(
    files: LogFiles, components: Components, report: LogReport, on_bytes: OnBytes, *, records: bool
) -> None:
    with ExitStack() as stack:
        try:
            names = check_file_names(files)
            segments = open_segments(files, components, stack, writable=False, names=names)
        except CorruptionError as error:
            report.findings.append(_damage(error.file, error))
            return
        if records:
            report.records = 0
        _SegmentsCheck(files, components, report, segments, on_bytes).run()
    for check in (
        _find_leftovers(files),
        _find_vanished(files),
        _check_snapshots(files, report.log_end),
        _check_small_files(files),
    ):
        report.findings += check


class _SegmentsCheck:
    """Check of all segments of one log, with the producers' state carried from one segment to the next."""

    def __init__(
        self,
        files: LogFiles,
        components: Components,
        report: LogReport,
        segments: list[Segment],
        on_bytes: OnBytes,
    ) -> None:
        self._components, self._report, self._segments, self._on_bytes = components, report, segments, on_bytes
        self._bad_records = list[Finding]()
        self._names = set(file_names(files))
        first = segments[0].base_offset if segments else 0
        self._state = newest_snapshot(files, snapshot_offsets(self._names), first) or ProducerState()

    def run(self) -> None:
        report, components = self._report, self._components
        for segment in self._segments:
            is_last = segment is self._segments[-1]
            spans = (
                find_active_spans(segment, components, report.known_end)
                if is_last
                else find_closed_spans(segment, components)
            )
            report.segments += 1
            if spans:
                position = spans[1].start if len(spans) > 1 else 0
                report.findings.append(Finding(FindingKind.OVERFLOW, segment.label, position, _OVERFLOWS))
            with ExitStack() as stack:
                pieces = pieces_of(segment, spans, stack) if spans else [segment]
                for piece in pieces:
                    self._check_piece(
                        piece, segment.label, is_last=is_last and piece is pieces[-1], is_piece=bool(spans)
                    )
        report.findings += self._bad_records

    def _check_piece(self, segment: Segment, label: str, *, is_last: bool, is_piece: bool) -> None:
        report = self._report
        indexes = {} if is_piece else read_stored_indexes(segment, self._components, self._names)
        index = next((stored.place for stored in indexes.values() if stored.entries), None)
        if index is not None and not segment.size_bytes and not is_last:  # a closed segment without records has none
            text = f"the file is empty and {index} is not: restore the records before the next open empties it"
            report.findings.append(Finding(FindingKind.DAMAGE, label, 0, text))
        segment_report = check_segment(
            segment,
            self._components,
            indexes=indexes,
            records=report.records is not None,
            replay=self._replay,
            is_last=is_last,
            on_bytes=self._on_bytes,
        )
        report.batches += segment_report.batches
        report.size_bytes += segment.size_bytes
        report.log_end = segment_report.end_offset
        if report.records is not None:
            report.records += segment_report.records
        report.findings += _locate_in_file(segment_report.findings, segment, label)
        self._bad_records += _locate_in_file(segment_report.bad_records, segment, label)

    def _replay(self, chunk: Chunk, table: BatchTable) -> Mapping[int, AbortedTransaction]:
        if max(table.leader_epoch) > self._report.epochs.latest:
            for epoch, offset in zip(table.leader_epoch, table.base_offset, strict=True):
                if epoch > self._report.epochs.latest:
                    self._report.epochs = self._report.epochs.assign(epoch, offset)
        return replay_table(self._state, chunk.data, table, self._components)


def _locate_in_file(findings: Sequence[Finding], segment: Segment, label: str) -> Iterator[Finding]:
    """Return findings of a segment, or of a part of an overflowed one, with the path and the positions in its file."""
    if not segment.start:
        return iter(findings)
    return (replace(finding, place=label, position=finding.position + segment.start) for finding in findings)


def _find_leftovers(files: LogFiles) -> Iterator[Finding]:
    for file in files.list():
        parsed = parse_segment_file(file.name)
        if parsed is not None and parsed.state in {CLEANED_SUFFIX, SWAP_SUFFIX}:
            text = "left by an interrupted replacement of segments"
            yield Finding(FindingKind.LEFT_OVER, files.path(file.name), 0, text)


def _find_vanished(files: LogFiles) -> Iterator[Finding]:
    """Yield a finding for each index without a segment.

    The files are listed twice, because a list can omit a file that another process renames at the same time.
    """
    names = file_names(files)
    missing = missing_logs(names, names)
    if missing:
        names = file_names(files)
    for log, index in missing_logs([index for index in missing.values() if index in names], names).items():
        text = f"the file is missing and {index} exists: restore the records before the next open, which removes it"
        yield Finding(FindingKind.DAMAGE, files.path(log), 0, text)


def _check_snapshots(files: LogFiles, log_end: int) -> Iterator[Finding]:
    for offset in snapshot_offsets(file_names(files)):
        name = segment_file(offset, SNAPSHOT_SUFFIX)
        try:
            decode_snapshot(files.read_small(name) or b"", files.path(name))
        except (CorruptSnapshotError, CorruptCheckpointError) as error:
            yield Finding(FindingKind.SNAPSHOT, error.file, error.position, error.reason)
        else:
            if offset > log_end:
                yield Finding(FindingKind.SNAPSHOT, files.path(name), 0, f"is above the log end offset {log_end}")


def _check_small_files(files: LogFiles) -> Iterator[Finding]:
    """Yield findings about the leader epochs and the topic id."""
    try:
        read_epochs(files)
    except CorruptCheckpointError as error:
        yield Finding(FindingKind.EPOCHS, error.file, error.position, error.reason)
    try:
        read_topic_id(files)
    except CorruptCheckpointError as error:
        yield _damage(files.path(PARTITION_METADATA_FILE), error)


def _damage(place: str, error: CorruptionError) -> Finding:
    return Finding(FindingKind.DAMAGE, place, error.position, error.reason)


def log_bytes(files: LogFiles) -> int:
    """Return the total size (bytes) of a log's ``.log`` files, without indexes and other files."""
    parsed_files = ((file, parse_segment_file(file.name)) for file in files.list())
    return sum(file.size_bytes for file, name in parsed_files if name and name.suffix == LOG_SUFFIX and not name.state)
