"""Parser of the output of Kafka's ``kafka.tools.DumpLogSegments``, which prints the contents of segment files.

The tool runs with ``--deep-iteration`` (or a decoder, which implies it) and ``--files``. Each file that the tool
printed is a ``DumpedFile``; problems that it reported are in ``Dump.remarks``.

Source: apache/kafka tools DumpLogSegments, of 2.8 to 4.1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from stratalog.model.batches import NO_PRODUCER, RecordBatch, TimestampType
from stratalog.model.offsets import OffsetPosition, TimestampOffset
from stratalog.model.records import Record
from stratalog.model.segment_info import AbortedTransaction
from stratalog.producers.snapshot import ProducerEntry

_LAST_SEQUENCE: Final = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class DumpedRecord:
    """One ``| offset: ...`` line. Sizes are in bytes; -1 means null.

    ``sequence`` is -1 and ``header_keys`` is empty if the format does not store them (V0, V1). ``header_keys`` are the
    keys with commas in between, as the tool prints them: keys can be empty and can contain commas. ``crc`` is the CRC
    of a V0 or V1 message, else None. ``contents`` is the rest of the line: the output of the tool's decoder, or the
    contents of a control record. Comparisons of records ignore ``crc`` and ``contents``.
    """

    offset: int
    timestamp_type: TimestampType
    timestamp_ms: int
    key_size: int
    value_size: int
    sequence: int = -1
    header_keys: str = ""
    crc: int | None = field(default=None, compare=False)
    contents: str = field(default="", compare=False)

    @classmethod
    def of(cls, record: Record, batch: RecordBatch) -> DumpedRecord:
        """Return the line that the tool should print for a record of ``batch``."""
        return cls(
            record.offset,
            record.timestamp_type,
            record.timestamp_ms,
            -1 if record.key is None else len(record.key),
            -1 if record.value is None else len(record.value),
            _sequence(batch.base_sequence, record.offset - batch.base_offset),
            ",".join(name for name, _ in record.headers),
        )


@dataclass(slots=True, kw_only=True)
class DumpedBatch:
    """One batch line: a V2 batch, or one entry of V0 or V1. ``position`` and ``size_bytes`` are bytes of the file.

    V0 and V1 have no base offset, count and flags: these are None, and epochs, producer and sequences are -1.
    ``valid`` is the result of the tool's own CRC check.
    """

    magic: int
    position: int
    size_bytes: int
    last_offset: int
    timestamp_type: TimestampType
    max_timestamp_ms: int
    codec: str
    crc: int
    valid: bool = True
    base_offset: int | None = None
    count: int | None = None
    base_sequence: int = -1
    last_sequence: int = -1
    producer_id: int = NO_PRODUCER
    producer_epoch: int = -1
    leader_epoch: int = -1
    transactional: bool | None = None
    control: bool | None = None
    delete_horizon_ms: int | None = None
    records: list[DumpedRecord] = field(default_factory=list)

    @classmethod
    def of(cls, batch: RecordBatch, position: int, codec: str, records: Iterable[Record] = ()) -> DumpedBatch:
        """Return the line that the tool should print for a batch.

        Args:
            batch: header of the batch.
            position: position in the file, in bytes.
            codec: name of the codec, ``none`` without one.
            records: records of the batch.
        """
        is_v2 = batch.magic == 2
        return cls(
            magic=batch.magic,
            position=position,
            size_bytes=batch.size_bytes,
            last_offset=batch.last_offset,
            timestamp_type=batch.timestamp_type,
            max_timestamp_ms=batch.max_timestamp_ms,
            codec=codec,
            crc=batch.crc,
            base_offset=batch.base_offset if is_v2 else None,
            count=batch.record_count if is_v2 else None,
            base_sequence=batch.base_sequence,
            last_sequence=_sequence(batch.base_sequence, batch.last_offset - batch.base_offset),
            producer_id=batch.producer_id,
            producer_epoch=batch.producer_epoch,
            leader_epoch=batch.leader_epoch,
            transactional=batch.is_transactional if is_v2 else None,
            control=batch.is_control if is_v2 else None,
            delete_horizon_ms=batch.delete_horizon_ms,
            records=[DumpedRecord.of(record, batch) for record in records],
        )


@dataclass(slots=True)
class DumpedFile:
    """Contents of one file; only the list of the file's kind is filled.

    Attributes:
        name: name of the file.
        batches: batches of a ``.log``.
        offset_entries: entries of an ``.index``.
        time_entries: entries of a ``.timeindex``.
        aborted: aborted transactions of a ``.txnindex``.
        producers: producers of a ``.snapshot``; without batches, last sequence and last offset are -1.
    """

    name: str
    batches: list[DumpedBatch] = field(default_factory=list)
    offset_entries: list[OffsetPosition] = field(default_factory=list)
    time_entries: list[TimestampOffset] = field(default_factory=list)
    aborted: list[AbortedTransaction] = field(default_factory=list)
    producers: list[ProducerEntry] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Dump:
    """All files of one run of the tool by name, and its other messages: mismatches, gaps between offsets, errors.

    The tool also reports gaps between batches, which are normal after compaction. In V0 and V1, Kafka's index entries
    point to the last of several entries of one append; the tool reports them too.
    """

    files: dict[str, DumpedFile]
    remarks: tuple[str, ...]


def _number(name: str) -> str:
    return rf"(?P<{name}>-?\d+)"


_STAMP: Final = rf"(?P<type>NoTimestampType|CreateTime|LogAppendTime): {_number('stamp')}"
_OPTIONAL: Final = r"OptionalLong(?:\.empty|\[{number}\])"
_CONTENTS: Final = (
    rf"position: {_number('position')} {_STAMP} size: {_number('size')} magic: {_number('magic')} "
    rf"compresscodec: (?P<codec>\w+) crc: {_number('crc')} isvalid: (?P<valid>true|false)"
)
_ENTRY: Final = re.compile(rf"offset: {_number('offset')} {_CONTENTS}")
_BATCH: Final = re.compile(
    rf"baseOffset: {_number('base_offset')} lastOffset: {_number('last_offset')} count: {_number('count')} "
    rf"baseSequence: {_number('base_sequence')} lastSequence: {_number('last_sequence')} "
    rf"producerId: {_number('producer_id')} producerEpoch: {_number('producer_epoch')} "
    rf"partitionLeaderEpoch: {_number('leader_epoch')} isTransactional: (?P<transactional>true|false) "
    rf"isControl: (?P<control>true|false) "
    rf"(?:deleteHorizonMs: {_OPTIONAL.format(number=_number('horizon'))} )?{_CONTENTS}"
)
_RECORD: Final = re.compile(
    rf"\| offset: {_number('offset')} {_STAMP} keySize: {_number('key_size')} valueSize: {_number('value_size')}"
    rf"(?: sequence: {_number('sequence')} headerKeys: \[(?P<keys>[^\]]*)\]"
    rf"| isValid: \w+ crc: {_number('crc')}\}})(?: (?P<contents>.*))?"
)
_OFFSET_ENTRY: Final = re.compile(rf"offset: {_number('offset')} position: {_number('position')}")
_TIME_ENTRY: Final = re.compile(rf"timestamp: {_number('stamp')} offset: {_number('offset')}")
_ABORTED: Final = re.compile(
    rf"version: 0 producerId: {_number('producer_id')} firstOffset: {_number('first_offset')} "
    rf"lastOffset: {_number('last_offset')} lastStableOffset: {_number('last_stable')}"
)
_PRODUCER: Final = re.compile(
    rf"producerId: {_number('producer_id')} producerEpoch: {_number('producer_epoch')} "
    rf"coordinatorEpoch: {_number('coordinator_epoch')} "
    rf"currentTxnFirstOffset: {_OPTIONAL.format(number=_number('first_offset'))} lastTimestamp: {_number('stamp')} ?"
    rf"(?:firstSequence: {_number('first_sequence')} lastSequence: {_number('last_sequence')} "
    rf"lastOffset: {_number('last_offset')} offsetDelta: {_number('offset_delta')} timestamp: -?\d+)?"
)
_FILE: Final = re.compile(r"Dumping (.+)")
_WITHOUT_NEWS: Final = re.compile(
    r"Log starting offset: \d+|Snapshot end offset: .*|.*\.(?:index|timeindex) (?:is empty|passed sanity check)\.|"
)
_TYPES: Final = {str(kind): kind for kind in TimestampType}


def parse_dump(text: str) -> Dump:
    """Parse the tool's output. An unknown line is added to ``remarks``; no error is raised."""
    files: dict[str, DumpedFile] = {}
    remarks: list[str] = []
    current = DumpedFile("")
    for line in text.splitlines():
        started = _FILE.fullmatch(line)
        if started:
            current = files.setdefault(started[1], DumpedFile(started[1]))
        elif not (_take(current, line) or _WITHOUT_NEWS.fullmatch(line)):
            remarks.append(line)
    return Dump(files, tuple(remarks))


def _take(file: DumpedFile, line: str) -> bool:
    """Add the contents of ``line`` to ``file``; return False if the line contains no contents."""
    if match := _RECORD.fullmatch(line):
        if not file.batches:
            return False
        file.batches[-1].records.append(_record(match))
    elif match := _BATCH.fullmatch(line):
        file.batches.append(_batch(match))
    elif match := _ENTRY.fullmatch(line):
        file.batches.append(_entry(match))
    elif match := _OFFSET_ENTRY.fullmatch(line):
        file.offset_entries.append(OffsetPosition(*_numbers(match)))
    elif match := _TIME_ENTRY.fullmatch(line):
        file.time_entries.append(TimestampOffset(*_numbers(match)))
    elif match := _ABORTED.fullmatch(line):
        file.aborted.append(AbortedTransaction(*_numbers(match)))
    elif match := _PRODUCER.fullmatch(line):
        file.producers.append(_producer(match))
    else:
        return False
    return True


def _numbers(match: re.Match[str]) -> list[int]:
    return [int(text) for text in match.groups()]


def _record(match: re.Match[str]) -> DumpedRecord:
    return DumpedRecord(
        int(match["offset"]),
        _TYPES[match["type"]],
        int(match["stamp"]),
        int(match["key_size"]),
        int(match["value_size"]),
        int(match["sequence"] or -1),
        match["keys"] or "",
        int(match["crc"]) if match["crc"] else None,
        match["contents"] or "",
    )


def _common(match: re.Match[str]) -> dict[str, Any]:  # Any: keyword arguments of several types
    return {
        "magic": int(match["magic"]),
        "position": int(match["position"]),
        "size_bytes": int(match["size"]),
        "timestamp_type": _TYPES[match["type"]],
        "max_timestamp_ms": int(match["stamp"]),
        "codec": match["codec"],
        "crc": int(match["crc"]),
        "valid": match["valid"] == "true",
    }


def _entry(match: re.Match[str]) -> DumpedBatch:
    return DumpedBatch(last_offset=int(match["offset"]), **_common(match))


def _batch(match: re.Match[str]) -> DumpedBatch:
    return DumpedBatch(
        base_offset=int(match["base_offset"]),
        last_offset=int(match["last_offset"]),
        count=int(match["count"]),
        base_sequence=int(match["base_sequence"]),
        last_sequence=int(match["last_sequence"]),
        producer_id=int(match["producer_id"]),
        producer_epoch=int(match["producer_epoch"]),
        leader_epoch=int(match["leader_epoch"]),
        transactional=match["transactional"] == "true",
        control=match["control"] == "true",
        delete_horizon_ms=int(match["horizon"]) if match["horizon"] else None,
        **_common(match),
    )


def _producer(match: re.Match[str]) -> ProducerEntry:
    return ProducerEntry(
        producer_id=int(match["producer_id"]),
        producer_epoch=int(match["producer_epoch"]),
        last_sequence=int(match["last_sequence"] or -1),
        last_offset=int(match["last_offset"] or -1),
        offset_delta=int(match["offset_delta"] or 0),
        last_timestamp_ms=int(match["stamp"]),
        coordinator_epoch=int(match["coordinator_epoch"]),
        transaction_first_offset=int(match["first_offset"] or -1),
    )


def _sequence(base: int, delta: int) -> int:
    """Return the sequence ``delta`` after ``base``, which wraps around to 0; -1 if there are no sequences."""
    return (base + delta) % (_LAST_SEQUENCE + 1) if base >= 0 else -1
