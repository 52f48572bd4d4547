"""Verification of a log's folder, and the repairs that lose no good record."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Final

from stratalog.config.topic import TopicConfig
from stratalog.epochs.epoch_cache import EpochCache
from stratalog.errors import CorruptCheckpointError, CorruptionError, CorruptSnapshotError
from stratalog.log.folder.directory_state import read_topic_id
from stratalog.log.folder.folder import file_names, open_segments, read_epochs, write_epochs
from stratalog.log.load.loaded_log import LoadRequest
from stratalog.log.load.log_loader import load
from stratalog.log.load.overflow import active_spans, closed_spans, pieces_of
from stratalog.log.load.producer_replay import newest_snapshot, replay_table, snapshot_offsets
from stratalog.model.batches import BatchTable
from stratalog.model.names import (
    CLEANED_SUFFIX,
    DIGEST_SUFFIX,
    LEADER_EPOCHS_FILE,
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
from stratalog.segment.framing import Chunk
from stratalog.segment.record_check import DeepCheck
from stratalog.segment.recover import Progress
from stratalog.segment.segment import Segment
from stratalog.segment.segment_check import Problem, ProblemKind, verify_segment
from stratalog.spi.segment_store import LogFiles

_OVERFLOWS: Final = (
    "offsets from here on are too far above the segment's base for any index: the next opening splits it"
)


@dataclass(slots=True)
class LogReport:
    """Result of the verification of a log's folder.

    ``log_end`` and the counts cover the good part of the log. ``epochs`` are the leader epochs of the batches.
    ``records`` is None unless every record was checked.
    """

    segments: int = 0
    batches: int = 0
    records: int | None = None
    size_bytes: int = 0
    log_end: int = 0
    problems: list[Problem] = field(default_factory=list)
    epochs: EpochCache = field(default_factory=EpochCache)


def verify_log(
    files: LogFiles, parts: Components, progress: Progress, *, deep: bool = False, known_end: int = 0
) -> LogReport:
    """Check every file of a log's folder. Writes nothing, and keeps one chunk of a segment in memory at a time.

    Args:
        files: the folder.
        parts: the log's components.
        progress: called with the number of bytes that were checked.
        deep: True to decompress and decode every record, in addition to the CRC checks.
        known_end: the largest offset of the log that a checkpoint contains.

    Raises:
        LogDirError: a file cannot be read.
    """
    report = LogReport()
    with ExitStack() as opened:
        try:
            segments = open_segments(files, parts, opened, writable=False)
        except CorruptionError as error:
            report.problems.append(Problem(ProblemKind.DAMAGE, error.file, error.position, error.reason))
            return report
        _Verifier(files, parts, report, segments, progress, DeepCheck(parts) if deep else None).run(known_end)
        opened.pop_all()
    for segment in segments:
        segment.close()
    _check_leftovers(files, report)
    _check_vanished(files, report, {segment.base_offset for segment in segments})
    _check_snapshots(files, report)
    _check_epochs(files, report)
    try:
        read_topic_id(files)
    except CorruptCheckpointError as error:
        path = files.path(PARTITION_METADATA_FILE)
        report.problems.append(Problem(ProblemKind.DAMAGE, path, error.position, error.reason))
    return report


class _Verifier:
    """Verification of all segments of one log, with the producers' state carried from one segment to the next."""

    def __init__(
        self,
        files: LogFiles,
        parts: Components,
        report: LogReport,
        segments: list[Segment],
        progress: Progress,
        deep: DeepCheck | None,
    ) -> None:
        self._parts, self._report, self._segments, self._progress = parts, report, segments, progress
        self._deep, self._label = deep, ""
        first = segments[0].base_offset if segments else 0
        self._state = newest_snapshot(files, snapshot_offsets(file_names(files)), first) or ProducerState()

    def run(self, known_end: int) -> None:
        report = self._report
        for segment in self._segments:
            is_last = segment is self._segments[-1]
            spans = active_spans(segment, self._parts, known_end) if is_last else closed_spans(segment, self._parts)
            report.segments += 1
            if spans:
                position = spans[1].start if len(spans) > 1 else 0
                report.problems.append(Problem(ProblemKind.OVERFLOW, segment.label, position, _OVERFLOWS))
            with ExitStack() as opened:
                pieces = pieces_of(segment, spans, opened) if spans else [segment]
                for piece in pieces:
                    self._verify(piece, segment.label, is_last=is_last and piece is pieces[-1], indexed=not spans)
        if self._deep is not None:
            report.problems.extend(self._deep.problems)
            report.records = self._deep.records

    def _verify(self, segment: Segment, label: str, *, is_last: bool, indexed: bool) -> None:
        report, self._label = self._report, segment.label
        found = verify_segment(segment, self._parts, self._replay, self._progress, is_last=is_last, indexed=indexed)
        report.batches += found.batches
        report.size_bytes += segment.size_bytes
        report.log_end = found.end_offset
        for problem in found.problems:  # report a piece's problem with the file's name, and the position in that file
            if segment.start:
                problem = replace(problem, file=label, position=problem.position + segment.start)  # noqa: PLW2901 - the same
            report.problems.append(problem)

    def _replay(self, chunk: Chunk, table: BatchTable) -> Mapping[int, AbortedTransaction]:
        if self._deep is not None:
            self._deep.look(self._label, chunk, table)
        if max(table.leader_epoch) > self._report.epochs.latest:
            for epoch, offset in zip(table.leader_epoch, table.base_offset, strict=True):
                if epoch > self._report.epochs.latest:
                    self._report.epochs = self._report.epochs.assign(epoch, offset)
        return replay_table(self._state, chunk.data, table, self._parts)


def _check_leftovers(files: LogFiles, report: LogReport) -> None:
    for file in files.list():
        found = parse_segment_file(file.name)
        if found is not None and found.state in {CLEANED_SUFFIX, SWAP_SUFFIX}:
            text = "left by a replacement of segments that was interrupted"
            report.problems.append(Problem(ProblemKind.LEFT, files.path(file.name), 0, text))


def _check_vanished(files: LogFiles, report: LogReport, bases: Collection[int]) -> None:
    """Report indexes without a segment. Ignore those below the first segment: a crash during a deletion left them."""
    told = set(bases)
    for file in files.list():
        found = parse_segment_file(file.name)
        if found is None or found.state or found.suffix in {LOG_SUFFIX, SNAPSHOT_SUFFIX, DIGEST_SUFFIX}:
            continue
        if found.base_offset not in told and min(bases, default=0) < found.base_offset:
            told.add(found.base_offset)
            path = files.path(segment_file(found.base_offset, LOG_SUFFIX))
            text = f"the file is gone, {file.name} is there: restore its records, the next opening removes this trace"
            report.problems.append(Problem(ProblemKind.DAMAGE, path, 0, text))


def _check_snapshots(files: LogFiles, report: LogReport) -> None:
    for offset in snapshot_offsets(file_names(files)):
        name = segment_file(offset, SNAPSHOT_SUFFIX)
        try:
            decode_snapshot(files.read_small(name) or b"", files.path(name))
        except (CorruptSnapshotError, CorruptCheckpointError) as error:
            report.problems.append(Problem(ProblemKind.SNAPSHOT, error.file, error.position, error.reason))
        else:
            if offset > report.log_end:
                text = f"is above the log's end, {report.log_end}"
                report.problems.append(Problem(ProblemKind.SNAPSHOT, files.path(name), 0, text))


def _check_epochs(files: LogFiles, report: LogReport) -> None:
    try:
        read_epochs(files)
    except CorruptCheckpointError as error:
        report.problems.append(Problem(ProblemKind.EPOCHS, error.file, error.position, error.reason))


def repair_log(
    files: LogFiles,
    parts: Components,
    config: TopicConfig,
    report: LogReport,
    log_start: int | None,
    known_end: int = 0,
) -> None:
    """Repair the repairable problems that ``verify_log`` found.

    Repairs are: truncate a torn tail, split overflowed segments, and rebuild indexes, snapshots and leader epochs. The
    caller has locked the directory, and has made sure that its next opening counts as one after a crash.

    Raises:
        StorageError: a file cannot be written, or the log cannot be loaded.
    """
    for problem in report.problems:
        name = problem.file.rpartition("/")[2]
        if problem.kind is ProblemKind.TORN:
            _cut(files, name, problem.position)
        elif problem.kind is ProblemKind.SNAPSHOT:
            files.remove(name)
        elif problem.kind is ProblemKind.EPOCHS:
            files.remove(LEADER_EPOCHS_FILE)
            write_epochs(files, report.epochs)
        elif problem.kind is ProblemKind.INDEX:
            found = parse_segment_file(name)
            if found is not None:  # without its offset index, loading rebuilds all indexes of the segment
                files.remove(segment_file(found.base_offset, ".index"))
                files.remove(name)
    request = LoadRequest(True, recovery_point=known_end, log_start=log_start, high_watermark=None, writable=True)
    loaded = load(files, parts, config, request)
    for segment in loaded.segments:
        segment.close()
    for name in loaded.left:
        files.remove(name)


def _cut(files: LogFiles, name: str, size_bytes: int) -> None:
    file = files.open_segment(name)
    try:
        file.truncate(size_bytes)
        file.sync()
    finally:
        file.close()


def is_log_file(name: str) -> bool:
    """Return True if a file is the ``.log`` file of a segment."""
    found = parse_segment_file(name)
    return found is not None and found.suffix == LOG_SUFFIX and not found.state
