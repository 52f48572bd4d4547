"""Forgetting a key: every local segment that holds a record of it is written anew without these records.

Offsets, batch headers, markers and what is known of producers stay: a batch that loses all of its records stays as its
header alone. Segments take each other's place as in compaction, one by one, so that a crash leaves each either as it was or
without the key, and a second call goes on where the first ended.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from stratalog.cleaning.verdicts import DROP, KEEP, by_batch
from stratalog.errors import CorruptBatchError, SegmentGoneError, StorageError
from stratalog.log.log import Log
from stratalog.model.batches import CONTROL_BIT, BatchTable, Buffer
from stratalog.model.names import TopicPartition
from stratalog.model.records import Fields, RecordColumns
from stratalog.segment.framing import Chunk, walk
from stratalog.segment.readable import ReadableSegment
from stratalog.segment.search import decode, transaction_index
from stratalog.segment.segment import Segment

_HASHED_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class ErasedSegment:
    """A segment that was written anew; digests are those of its ``.log``, before and after."""

    base_offset: int
    end_offset: int
    records: int
    bytes_before: int
    bytes_after: int
    sha256_before: str
    sha256_after: str


@dataclass(frozen=True, slots=True)
class Remnant:
    """What may still hold the key.

    ``kind`` is "tier" (an object), "local copy" (of one: it stays what the tier has), "deleted file" (goes at
    ``until_ms``, at an orderly stop at the latest), or "damaged segment" (``reason`` says how). ``until_ms`` is -1 where
    nothing ends it by itself.
    """

    kind: str
    where: str
    until_ms: int = -1
    reason: str = ""


@dataclass(frozen=True, slots=True)
class EraseResult:
    """What was done to one log. ``end`` is the log end when it began: later records of the key are none of its business.

    ``error`` is what ended it early; a second call goes on.
    """

    log: TopicPartition
    end: int
    segments: tuple[ErasedSegment, ...]
    remnants: tuple[Remnant, ...]
    error: StorageError | None = None

    @property
    def is_complete(self) -> bool:
        """Whether no reader can find the key below ``end``: only files that nobody reads may still hold it."""
        return self.error is None and all(found.kind == "deleted file" for found in self.remnants)


def erase(log: Log, key: bytes, *, dry_run: bool = False) -> EraseResult:
    """Forget a key of one log; ``dry_run`` only tells (digests after are "" then). The active segment is rolled first.

    Waits for a round of compaction, or an offload, that is under way.
    """
    end = log.offsets().log_end
    done, error = list[ErasedSegment](), None
    damaged = list[Remnant]()
    with log.cleaning.busy:
        try:
            if not dry_run and _active_holds(log, key):
                log.roll()
        except StorageError as wrong:
            return EraseResult(log.name, end, (), (), wrong)
        view, remote_end = log.view(), _remote_end(log)
        for segment in view.segments:
            if segment.base_offset < remote_end or segment.base_offset >= end:
                continue
            try:
                if count := _records_of(log, segment, key):
                    done.append(_told(segment, count) if dry_run else _erased(log, segment, key, count))
            except CorruptBatchError as wrong:
                damaged.append(Remnant("damaged segment", segment.label, reason=str(wrong)))
            except StorageError as wrong:
                error = wrong
                break
        remnants = [*damaged, *_in_tier(log, key)]
    remnants += [Remnant("deleted file", path, until_ms) for path, until_ms in log.leaving()]
    return EraseResult(log.name, end, tuple(done), tuple(remnants), error)


# --- finding ---------------------------------------------------------------------------------------------------------


def _active_holds(log: Log, key: bytes) -> bool:
    try:
        return bool(_records_of(log, log.view().segments[-1], key))
    except CorruptBatchError:  # nothing is dropped from it, and it is told of
        return False


def _remote_end(log: Log) -> int:
    remote = log.view().remote
    return 0 if remote is None else remote.end_offset


def _records_of(log: Log, segment: ReadableSegment, key: bytes) -> int:
    """How many records of the key a segment holds."""
    chunks = walk(segment, 0, log.parts)
    tables = ((chunk, table) for chunk in chunks for table in chunk.tables)
    return sum(words.count(DROP) for chunk, table in tables for words in _verdicts(log, segment, chunk, table, key))


def _in_tier(log: Log, key: bytes) -> Iterator[Remnant]:
    """Objects that hold the key, and local copies of objects that do; what the log start has passed counts too."""
    view = log.view()
    if view.remote is None:
        return
    for segment in view.remote.segments:
        try:
            if not _records_of(log, segment, key):
                continue
        except CorruptBatchError as wrong:
            yield Remnant("damaged segment", segment.label, reason=str(wrong))
            continue
        yield Remnant("tier", segment.label, reason="segments in a tier are not written anew yet")
        for local in view.segments:
            if local.base_offset < segment.end_offset and segment.base_offset < local.end_offset:
                yield Remnant("local copy", local.label, reason="it is a copy of what the tier has")


def _verdicts(log: Log, segment: ReadableSegment, chunk: Chunk, table: BatchTable, key: bytes) -> list[bytes]:
    """One list of verdicts a batch; markers stay."""
    is_data = [not attributes & CONTROL_BIT for attributes in table.attributes]
    wanted = table if all(is_data) else table.keep(is_data)
    decoded = decode(chunk, wanted, segment, log.parts, Fields.OFFSET | Fields.KEY)
    judged = ((columns, _words(columns, key)) for columns in decoded)
    words = by_batch(wanted, judged)
    return [
        bytes(next(words)) if data else KEEP * count for data, count in zip(is_data, table.record_count, strict=True)
    ]


def _words(records: RecordColumns, key: bytes) -> bytearray:
    keys = records.keys()
    return bytearray(b"".join(DROP if found == key else KEEP for found in keys))


# --- writing anew ----------------------------------------------------------------------------------------------------


def _erased(log: Log, segment: Segment, key: bytes, count: int) -> ErasedSegment:
    ticket, parts = log.cleaning.changes, log.parts
    before, size_bytes = _digest(segment), segment.size_bytes
    ended = {entry.last_offset: entry for entry in transaction_index(segment, parts)}
    made = log.new_cleaned(segment.base_offset)
    after = hashlib.sha256()
    try:
        for chunk in walk(segment, 0, parts, below=segment.end_offset):
            for table in chunk.tables:
                data = _retained(log, segment, chunk, table, key)
                if data:
                    made.append(data, ended)
                    after.update(data)
        bytes_after = made.size_bytes
        made.finish(segment.log.modified_ms)
        if not log.replace(made, [segment], ticket):
            raise SegmentGoneError("the log was changed while the key was erased: do it again", segment.label)  # noqa: TRY301 - the files go first
    except BaseException:
        made.discard()
        raise
    return ErasedSegment(
        segment.base_offset, segment.end_offset, count, size_bytes, bytes_after, before, after.hexdigest()
    )


def _retained(log: Log, segment: Segment, chunk: Chunk, table: BatchTable, key: bytes) -> bytes:
    verdicts: list[Buffer] = [*_verdicts(log, segment, chunk, table, key)]
    found = log.parts.formats.of(table.magic, segment.label, chunk.position)
    keeps_headers = [True] * len(table) if table.magic >= 2 else None
    limit_bytes = log.parts.limits.decompressed_bytes
    try:
        pieces = found.retain(chunk.data, table, verdicts, None, retain_empty=keeps_headers, limit_bytes=limit_bytes)
        return b"".join(pieces)
    except CorruptBatchError as error:
        raise CorruptBatchError(error.reason, segment.label, chunk.position + error.position) from error


def _told(segment: Segment, count: int) -> ErasedSegment:
    size_bytes = segment.size_bytes
    return ErasedSegment(segment.base_offset, segment.end_offset, count, size_bytes, size_bytes, _digest(segment), "")


def _digest(segment: Segment) -> str:
    found = hashlib.sha256()
    for position in range(0, segment.size_bytes, _HASHED_BYTES):
        found.update(segment.read(position, _HASHED_BYTES))
    return found.hexdigest()
