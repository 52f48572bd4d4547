"""Splits of a read plan, each the work of one task, and their encoding as messages from the planner to the tasks."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from operator import attrgetter
from typing import Final, NamedTuple, Self

from zstandard import ZstdCompressor, ZstdDecompressor, ZstdError, frame_content_size

from stratalog.errors import CorruptBatchError
from stratalog.model.names import TopicId, TopicPartition
from stratalog.model.offsets import Isolation
from stratalog.model.segment_info import AbortedTransaction
from stratalog.spi.layouts import StoredSegment
from stratalog.spi.stored import exactly
from stratalog.tier.manifest.page_codec import entry_from_json, entry_to_text

_COMPRESSION: Final = 1
_LARGEST_UNPACKED_BYTES: Final = 1 << 30  # enough for a million segments
_ENCODER: Final = json.JSONEncoder(separators=(",", ":"), check_circular=False)
_NUMBERS: Final = ("start", "end", "position", "end_position", "base_offset", "end_offset", "size_bytes", "file_start", "file_bytes")  # fmt: skip
_numbers: Final = attrgetter(*_NUMBERS)


class _Compressor(threading.local):
    """The compressor of one thread, kept because its creation takes longer than the compression of a message."""

    def __init__(self) -> None:
        self.zstd = ZstdCompressor(_COMPRESSION)


_COMPRESSOR: Final = _Compressor()


class PackedSegment(NamedTuple):
    """The manifest entry of a segment as JSON text, which needs less memory than a StoredSegment."""

    text: str

    @classmethod
    def of(cls, segment: StoredSegment) -> Self:
        """Return the packed form of ``segment``."""
        return cls(entry_to_text(segment))


class Piece(NamedTuple):
    """Offset range of one segment to read: records with offsets in [start, end).

    Attributes:
        log: the log.
        topic_id: id of its topic; None if a Kafka broker without topic ids wrote the directory.
        start: first offset to read.
        end: exclusive end offset.
        position: position in the segment (bytes) where a batch at or before ``start`` begins, according to the index.
        end_position: exclusive end (bytes) of the range that has all batches below ``end``, according to the index; the
            size of the segment if the index has no such position.
        base_offset: base offset of the segment.
        end_offset: exclusive end offset of the segment.
        size_bytes: size of the segment when the plan was made.
        place: name of the ``.log`` file in the log's folder, or the segment's entry in the tier's manifest; "" if
            nothing is read.
        is_active: True for the active segment.
        aborted: aborted transactions whose records are left out.
        damage: damage at the end of the log, which the scan must report; the piece then has no records. None for other
            pieces.
        file_start: position (bytes) in the file where the segment begins. It is above 0 only for a file that is read as
            several segments; Kafka before 2.0 may have written such a file.
        file_bytes: size of the whole file; 0 means ``size_bytes``.
        records: number of the records, if only the number is requested and the manifest contains it; nothing is read
            then. None for other pieces.
    """

    log: TopicPartition
    topic_id: TopicId | None
    start: int
    end: int
    position: int
    end_position: int
    base_offset: int
    end_offset: int
    size_bytes: int
    place: str | PackedSegment
    is_active: bool = False
    aborted: tuple[AbortedTransaction, ...] = ()
    damage: CorruptBatchError | None = None
    file_start: int = 0
    file_bytes: int = 0
    records: int | None = None

    @property
    def span_bytes(self) -> int:
        """Approximate number of bytes of the segment's ``.log`` file that will be read."""
        return self.end_position - self.position

    def stored_segment(self) -> StoredSegment | None:
        """Return the entry of the segment in the tier's manifest; None if the segment is local, or if nothing is read.

        Raises:
            StorageError, TypeError, ValueError, KeyError: ``place`` is not a manifest entry.
        """
        if not isinstance(self.place, PackedSegment):
            return None
        if self.topic_id is None:
            raise ValueError(f"a segment of {self.log} in a tier has no topic id")
        return entry_from_json(json.loads(self.place.text), self.log, self.topic_id)


@dataclass(frozen=True, slots=True)
class Split:
    """Pieces that one task reads. The pieces of one log are adjacent, and ascend by offset.

    A split can be pickled. It contains no secrets and no open files.
    """

    pieces: tuple[Piece, ...]
    isolation: Isolation

    @property
    def size_bytes(self) -> int:
        """Approximate number of bytes of ``.log`` files that will be read."""
        return sum(piece.span_bytes for piece in self.pieces)

    def to_message(self) -> bytes:
        """Return the split as bytes for ``from_message``."""
        # Compressed lines of JSON: the split without manifest entries, then a line for each entry.
        logs: dict[tuple[TopicPartition, TopicId | None], int] = {}
        rows, lines = list[tuple[object, ...]](), list[str]()
        for piece in self.pieces:
            place: str | PackedSegment | None = piece.place
            if isinstance(place, PackedSegment):
                lines.append(place.text)
                place = None
            row = logs.setdefault((piece.log, piece.topic_id), len(logs)), place, piece.is_active, piece.records
            damage = piece.damage
            rows.append(
                (
                    *row,
                    [list(astuple(transaction)) for transaction in piece.aborted],
                    None if damage is None else [damage.reason, damage.file, damage.position],
                    *_numbers(piece),
                )
            )
        log_rows = [[log.topic, log.partition, topic_id and topic_id.text] for log, topic_id in logs]
        text = "\n".join([_ENCODER.encode([self.isolation, log_rows, rows]), *lines])
        return _COMPRESSOR.zstd.compress(text.encode())

    @classmethod
    def from_message(cls, data: bytes) -> Self:
        """Return the split that ``to_message`` encoded as ``data``.

        Raises:
            StorageError, TypeError, ValueError, KeyError: the bytes are not a result of ``to_message``.
        """
        lines = iter(_decompress(data).split("\n"))
        isolation, log_rows, rows = exactly(list, json.loads(next(lines)), "split")
        logs = [_log(item) for item in exactly(list, log_rows, "logs")]
        pieces = tuple(_piece(exactly(list, row, "piece"), logs, lines) for row in exactly(list, rows, "pieces"))
        if next(lines, None) is not None:
            raise ValueError("a split has more entries than pieces")
        return cls(pieces, Isolation(exactly(str, isolation, "isolation")))


def _decompress(data: bytes) -> str:
    try:
        if frame_content_size(data) > _LARGEST_UNPACKED_BYTES:
            raise ValueError(f"a packed split has more than {_LARGEST_UNPACKED_BYTES} bytes after decompression")
        return ZstdDecompressor().decompress(data).decode()
    except ZstdError as error:
        raise ValueError(f"a packed split cannot be unpacked: {error}") from error


def _log(item: object) -> tuple[TopicPartition, TopicId | None]:
    topic, partition, topic_id = exactly(list, item, "log")
    log = TopicPartition(exactly(str, topic, "topic"), exactly(int, partition, "partition"))
    return log, None if topic_id is None else TopicId(exactly(str, topic_id, "topic_id"))


def _piece(row: list[object], logs: list[tuple[TopicPartition, TopicId | None]], entries: Iterator[str]) -> Piece:
    """Return the piece of one row of a message; if it is in a tier, consume its manifest entry from ``entries``."""
    number, place, is_active, records, aborted, damage, *numbers = row
    index = exactly(int, number, "log")
    if not 0 <= index < len(logs):
        raise ValueError(f"there is no log with index {index}, only {len(logs)} logs")
    log, topic_id = logs[index]
    sizes = {name: exactly(int, value, name) for name, value in zip(_NUMBERS, numbers, strict=True)}
    piece = Piece(
        log=log,
        topic_id=topic_id,
        place=PackedSegment(next(entries, "")) if place is None else exactly(str, place, "place"),
        is_active=exactly(bool, is_active, "is_active"),
        records=None if records is None else exactly(int, records, "records"),
        aborted=tuple(_decode_aborted(item) for item in exactly(list, aborted, "aborted")),
        damage=None if damage is None else _decode_damage(damage),
        **sizes,
    )
    piece.stored_segment()  # checks the entry
    return piece


def _decode_aborted(item: object) -> AbortedTransaction:
    producer_id, first, last, stable = (exactly(int, number, "aborted") for number in exactly(list, item, "aborted"))
    return AbortedTransaction(producer_id, first, last, stable)


def _decode_damage(item: object) -> CorruptBatchError:
    reason, file, position = exactly(list, item, "damage")
    return CorruptBatchError(
        exactly(str, reason, "damage"), exactly(str, file, "damage"), exactly(int, position, "damage")
    )
