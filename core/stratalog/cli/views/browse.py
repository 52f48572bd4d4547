"""One page of records of a log: at most ``PAGE_RECORDS`` records, from about ``PAGE_BYTES`` bytes or less."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from stratalog.cli.contents.decoders import INTERNAL_TOPICS, decoder_of
from stratalog.cli.contents.values import Style, bytes_text
from stratalog.cli.output import printable
from stratalog.cli.parameters import Start
from stratalog.log.read.log_reader import LogReader
from stratalog.log.read.view import LogView
from stratalog.model.offsets import Isolation
from stratalog.model.records import Record

PAGE_RECORDS: Final = 50
PAGE_BYTES: Final = 32 << 20  # bytes of the log, before decompression
_PAGE_SEGMENTS: Final = 1000
_BRIEF_CHARACTERS: Final = 300  # limit of a key or a value in a list of records
_FULL_CHARACTERS: Final = 1 << 17  # limit of a key or a value on the page of a single record


AvroText = Callable[[bytes], str | None]


@dataclass(frozen=True, slots=True)
class Query:
    """Records to show: all records from ``start`` on, or only the records of ``key``."""

    start: Start
    key: bytes | None = None
    isolation: Isolation = Isolation.READ_UNCOMMITTED


@dataclass(frozen=True, slots=True)
class RecordPage:
    """All records of a query with offsets in [start, end). ``log_end`` is the end of the isolation level."""

    records: tuple[Record, ...]
    start: int
    end: int
    log_start: int
    log_end: int

    @property
    def next_start(self) -> int | None:
        """First offset of the next page; None if this page ends at the log end."""
        return self.end if self.end < self.log_end else None

    @property
    def previous_start(self) -> int | None:
        """First offset of the previous page; None if this page begins at the log start."""
        return max(self.start - PAGE_RECORDS, self.log_start) if self.start > self.log_start else None


def read_page(log: LogReader, query: Query) -> RecordPage:
    """Return a page with at most ``PAGE_RECORDS`` records of a log, from ``query.start`` on."""
    log_end, log_start = log.offsets().bound(query.isolation), log.offsets().log_start
    start = query.start.nearest_in(log, query.isolation)
    end = bounded_end(log.view(), start, log_end)
    records = list(islice(_records(log, query, start, end), PAGE_RECORDS)) if start < end else []
    if len(records) == PAGE_RECORDS:
        end = records[-1].offset + 1
    return RecordPage(tuple(records), start, end, log_start, log_end)


def _records(log: LogReader, query: Query, start: int, end: int) -> Iterator[Record]:
    if query.key is None:
        return log.records(start, end, query.isolation)
    return log.records_with_key(query.key, start, end, query.isolation)


def bounded_end(view: LogView, start: int, end: int) -> int:
    """Return an end offset, at most ``end``. A read from ``start`` to the result reads about ``PAGE_BYTES`` or less.

    The size of a part of a segment is estimated from the size of the segment.
    """
    remaining_bytes, offset = PAGE_BYTES, start
    for segment in islice(view.readable_from(start), _PAGE_SEGMENTS):
        offset = max(offset, segment.base_offset)
        count = max(segment.end_offset - segment.base_offset, 1)
        size_bytes = segment.size_bytes * (segment.end_offset - offset) // count
        if size_bytes > remaining_bytes:
            return min(offset + max(remaining_bytes * count // segment.size_bytes, 1), end)
        remaining_bytes, offset = remaining_bytes - size_bytes, segment.end_offset
        if offset >= end:
            return end
    return min(max(offset, start + 1), end)


@dataclass(frozen=True, slots=True)
class ShownRecord:
    """A record as text. ``value`` contains key and value if the topic is one of Kafka's internal topics."""

    offset: int
    timestamp_ms: int
    leader_epoch: int
    key: str
    value: str
    headers: tuple[tuple[str, str], ...] = ()


def show_record(topic: str, record: Record, style: Style, avro: AvroText | None, *, full: bool = False) -> ShownRecord:
    """Return a record as text. Keys and values are cut after 300 characters, or with ``full`` after 131,072 characters.

    A value that does not fit ``style`` is shown as text or hex digits.
    """
    limit_characters = _FULL_CHARACTERS if full else _BRIEF_CHARACTERS
    head = (record.offset, record.timestamp_ms, record.leader_epoch)
    if topic in INTERNAL_TOPICS.values():
        lines = "\n".join(decoder_of(topic, None)(record).lines())
        return ShownRecord(*head, "", lines if len(lines) <= limit_characters else f"{lines[:limit_characters]}...")
    is_structured = style in {Style.JSON, Style.AVRO}
    plain = Style.TEXT if is_structured else style
    headers = tuple((printable(name), bytes_text(value, plain, _BRIEF_CHARACTERS)) for name, value in record.headers)
    value = (
        _format_json(record.value, style, avro, limit_characters)
        if is_structured
        else bytes_text(record.value, plain, limit_characters)
    )
    return ShownRecord(*head, bytes_text(record.key, plain, limit_characters), value, headers)


def _format_json(value: bytes | None, style: Style, avro: AvroText | None, limit_characters: int) -> str:
    """Return a JSON or Avro value as JSON on one line, or on several lines if the page shows a single record.

    JSON that is longer than ``limit_characters`` is cut. A value that cannot be parsed is shown as text or hex digits.
    """
    if value is None:
        return "null"
    text: str | bytes | None = value if style is Style.JSON else avro(value) if avro is not None else None
    try:
        line = json.dumps(json.loads(text or ""), ensure_ascii=False)
    except (ValueError, RecursionError):
        expected = "JSON" if style is Style.JSON else "of the Avro schema"
        return f"{bytes_text(value, Style.TEXT, limit_characters)} (not {expected})"
    if len(line) > limit_characters:
        return f"{line[:limit_characters]}... ({len(value):,} bytes)"
    return json.dumps(json.loads(line), ensure_ascii=False, indent=2) if limit_characters == _FULL_CHARACTERS else line
