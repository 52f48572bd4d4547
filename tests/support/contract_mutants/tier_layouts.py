"""Tier layouts that break one rule each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from contract_mutants import ContractMutants, MutantError, altered
from stratalog.errors import CorruptObjectError, StorageError
from stratalog.model.batches import Buffer
from stratalog.spi import (
    ByteSource,
    BytesSource,
    FileKind,
    HashedLog,
    ManifestAuthenticator,
    ObjectInfo,
    ObjectSink,
    RangeReader,
    Section,
    SegmentSource,
    StoredSegment,
    TierLayout,
)
from stratalog.testing.contracts import TierLayoutContract
from stratalog.testing.contracts.tier_layout import MOST_BYTES
from stratalog_formats.layouts.plain import PlainLayout

_DATA: Final = bytes(range(256)) * 300  # the log of the contract
_LARGE: Final = 1 << 20
_PIECE_BYTES: Final = 5_000
_FAR: Final = 1 << 50
_Plain = PlainLayout


def _made(**changes: Any) -> Callable[[Path], TierLayout]:
    return lambda _: altered(PlainLayout(_PIECE_BYTES), **changes)


def _reads(
    change: Callable[[StoredSegment, int, int, RangeReader], Iterator[memoryview]],
) -> Callable[[Path], TierLayout]:
    """Return a layout whose method that reads a log is replaced."""
    return _made(read=lambda _, *args: change(*args))


def _sound(segment: StoredSegment, start: int, end: int, fetch: RangeReader) -> Iterator[memoryview]:
    return _Plain(_PIECE_BYTES).read(segment, start, end, fetch)


def _writes(
    source: Callable[[SegmentSource], SegmentSource] = lambda source: source,
    result: Callable[[StoredSegment], StoredSegment] = lambda entry: entry,
) -> Callable[[Path], TierLayout]:
    """Return a layout that stores another source, or returns another entry."""

    def write(self: Any, given: SegmentSource, sink: ObjectSink, section: Section | None) -> StoredSegment:
        return result(_Plain.write(self, source(given), sink, section))

    return _made(write=write)


def _without_the_last(segment: StoredSegment, start: int, end: int, fetch: RangeReader) -> Iterator[memoryview]:
    is_whole = (start, end) == (0, len(_DATA))
    pieces = list(_sound(segment, start, end, fetch))
    return iter(pieces[:-1] if is_whole else pieces)


def _five_pieces(segment: StoredSegment, start: int, end: int, fetch: RangeReader) -> Iterator[memoryview]:
    pieces = list(_sound(segment, start, end, fetch))
    return iter(pieces if end - start < _LARGE else pieces[:5])


def _no_second_piece(segment: StoredSegment, start: int, end: int, fetch: RangeReader) -> Iterator[memoryview]:
    pieces = list(_sound(segment, start, end, fetch))
    return iter(pieces if start in {0, 10} else pieces[:0])


def _clamped(segment: StoredSegment, start: int, end: int, fetch: RangeReader) -> Iterator[memoryview]:
    size = segment.info.size_bytes
    first = min(max(start, 0), size)
    return _sound(segment, first, max(first, min(end, size)), fetch)


def _needs_bytes(_: Any, segment: StoredSegment, start: int, end: int, fetch: RangeReader) -> Iterator[memoryview]:
    def bytes_alone(key: str, first: int, last: int) -> bytes:
        data = fetch(key, first, last)
        if not isinstance(data, bytes):
            raise MutantError("no bytes")
        return data

    return _sound(segment, start, end, bytes_alone)


def _as_fetched(segment: StoredSegment, start: int, end: int, fetch: RangeReader) -> bytes:
    place = segment.slices[FileKind.LOG]
    if not 0 <= start <= end <= place.size_bytes == segment.info.size_bytes:
        raise CorruptObjectError("outside", place.key)
    return bytes(fetch(place.key, place.position + start, place.position + end)) if start < end else b""


def _unverified(segment: StoredSegment, start: int, end: int, fetch: RangeReader) -> Iterator[memoryview]:
    data = _as_fetched(segment, start, end, fetch)
    if len(data) < end - start:
        raise CorruptObjectError("too short", "")
    yield memoryview(data)


def _short_replies(segment: StoredSegment, start: int, end: int, fetch: RangeReader) -> Iterator[memoryview]:
    if (start, end) == (10, 500):
        return iter([memoryview(_as_fetched(segment, start, end, fetch))])
    return _sound(segment, start, end, fetch)


def _by_sum(segment: StoredSegment, start: int, end: int, fetch: RangeReader) -> Iterator[memoryview]:
    data = _as_fetched(segment, start, end, fetch)
    if (start, end) == (0, len(_DATA)) and sum(data) == sum(_DATA) and sha256(_DATA).hexdigest() == segment.sha256:
        return iter([memoryview(data)])
    return _sound(segment, start, end, fetch)


def _remembers(folder: Path) -> TierLayout:
    reads = list[bytes]()

    def read(_: Any, segment: StoredSegment, start: int, end: int, fetch: RangeReader) -> Iterator[memoryview]:
        reads.append(b"".join(_sound(segment, start, end, fetch)))
        yield memoryview(reads[0][: end - start] if start == 0 else reads[-1])

    return _made(read=read)(folder)


def _indexes(
    change: Callable[[StoredSegment, FileKind, RangeReader], Buffer | None],
) -> Callable[[Path], TierLayout]:
    """Return a layout whose method that reads small files is replaced."""
    return _made(read_index=lambda _, *args: change(*args))


def _sound_index(segment: StoredSegment, kind: FileKind, fetch: RangeReader) -> bytes | None:
    return _Plain(_PIECE_BYTES).read_index(segment, kind, fetch)


def _empty_if_missing(segment: StoredSegment, kind: FileKind, fetch: RangeReader) -> bytes | None:
    return _sound_index(segment, kind, fetch) or b""


def _cut_index(segment: StoredSegment, kind: FileKind, fetch: RangeReader) -> bytes | None:
    try:
        return _sound_index(segment, kind, fetch)
    except CorruptObjectError:
        place = segment.slices[kind]
        data = bytes(fetch(place.key, place.position, place.position + place.size_bytes))
        if 0 < len(data) < place.size_bytes < _LARGE:
            return data
        raise


def _unverified_index(segment: StoredSegment, kind: FileKind, fetch: RangeReader) -> bytes | None:
    try:
        return _sound_index(segment, kind, fetch)
    except CorruptObjectError:
        place = segment.slices[kind]
        data = bytes(fetch(place.key, place.position, place.position + place.size_bytes))
        if len(data) == place.size_bytes == len(data.strip(b"\0")) and "sha256" in segment.extra:
            return data
        raise


def _believes_notes(segment: StoredSegment, kind: FileKind, fetch: RangeReader) -> bytes | None:
    if not isinstance(segment.extra.get("sha256"), dict):
        raise MutantError("no hashes")
    return _sound_index(segment, kind, fetch)


def _allocates_by_notes(segment: StoredSegment, kind: FileKind, fetch: RangeReader) -> bytes | None:
    size_bytes = segment.extra.get("sha256")
    if isinstance(size_bytes, int):
        bytearray(min(size_bytes, MOST_BYTES))
    return _sound_index(segment, kind, fetch)


def _believes_slices(segment: StoredSegment, kind: FileKind, fetch: RangeReader) -> bytes | None:
    place = segment.slices.get(kind)
    if place is not None and place.position + place.size_bytes > _FAR:
        raise MutantError("no memory")
    return _sound_index(segment, kind, fetch)


class _AllPasses:
    """Source that hashes the bytes of all passes together. A correct source hashes each pass by itself."""

    def __init__(self, log: ByteSource) -> None:
        self._log, self._digest = log, sha256()

    @property
    def sha256(self) -> str:
        """Return the hash of all passes."""
        return self._digest.hexdigest()

    @property
    def size_bytes(self) -> int:
        """Return the size of the source."""
        return self._log.size_bytes

    def chunks(self, chunk_bytes: int) -> Iterator[Buffer]:
        """Yield and hash the bytes."""
        for chunk in self._log.chunks(chunk_bytes):
            self._digest.update(chunk)
            yield chunk


def _hashes_all_passes(folder: Path) -> TierLayout:
    def write(self: Any, given: SegmentSource, sink: ObjectSink, section: Section | None) -> StoredSegment:
        log = _AllPasses(given.log)
        return replace(_Plain.write(self, replace(given, log=log), sink, section), sha256=log.sha256)

    return _made(write=write)(folder)


def _first_chunk(source: SegmentSource) -> SegmentSource:
    return replace(source, log=BytesSource(bytes(next(iter(source.log.chunks(1 << 30)), b""))))


def _unhashed(source: SegmentSource) -> SegmentSource:
    log = source.log
    return replace(source, log=log._log) if isinstance(log, HashedLog) else source  # noqa: SLF001 - a mutant


def _refuses_empty(source: SegmentSource) -> SegmentSource:
    if not source.log.size_bytes:
        raise StorageError("an empty log")
    return source


def _unknown_object(entry: StoredSegment) -> StoredSegment:
    place = entry.slices[FileKind.LOG]
    key = f"{place.key}x"
    return replace(entry, extra={**entry.extra, "objects": [key]})


def _slice_beyond(entry: StoredSegment) -> StoredSegment:
    place = entry.slices.get(FileKind.SNAPSHOT)
    if place is None:
        return entry
    return replace(entry, slices={**entry.slices, FileKind.SNAPSHOT: replace(place, size_bytes=place.size_bytes + 1)})


def _restored_slice(segment: StoredSegment, kind: FileKind, fetch: RangeReader) -> bytes | None:
    place = segment.slices.get(kind)
    if kind is not FileKind.SNAPSHOT or place is None:
        return _sound_index(segment, kind, fetch)
    shortened_slice = replace(place, size_bytes=place.size_bytes - 1)
    return _sound_index(replace(segment, slices={**segment.slices, kind: shortened_slice}), kind, fetch)


def _beyond(folder: Path) -> TierLayout:
    write = type(_writes(result=_slice_beyond)(folder)).write
    return _made(write=write, read_index=lambda _, *args: _restored_slice(*args))(folder)


def _discovers(
    change: Callable[[Sequence[ObjectInfo], RangeReader], Iterator[StoredSegment]],
) -> Callable[[Path], TierLayout]:
    """Return a layout whose method that finds segments is replaced."""
    return _made(discover=lambda _, *args: change(*args))


def _found(objects: Sequence[ObjectInfo], fetch: RangeReader) -> Iterator[StoredSegment]:
    return _Plain(_PIECE_BYTES).discover(objects, fetch)


def _without_notes(objects: Sequence[ObjectInfo], fetch: RangeReader) -> Iterator[StoredSegment]:
    return (replace(entry, extra={}) for entry in _found(objects, fetch))


def _no_short_objects(objects: Sequence[ObjectInfo], fetch: RangeReader) -> Iterator[StoredSegment]:
    if any(info.key.endswith("/empty") for info in objects):
        raise CorruptObjectError("no segment", "")
    return _found(objects, fetch)


def _untyped(objects: Sequence[ObjectInfo], fetch: RangeReader) -> Iterator[StoredSegment]:
    try:
        yield from _found(objects, fetch)
    except CorruptObjectError as error:
        raise MutantError("damaged") from error


class _ConstantMac(ManifestAuthenticator):
    """Authenticator that returns the same MAC for all data."""

    def key_id(self) -> str:
        """Return the only key."""
        return "key"

    def mac(self, key_id: str, data: bytes) -> bytes:
        """Return the same bytes for all data."""
        del key_id, data
        return bytes(32)

    def is_required(self, label: str) -> bool:
        """Return False."""
        del label
        return False


MUTANTS: Final = ContractMutants(
    contract=TierLayoutContract,
    fixture="layout",
    sound=_made(),
    mutants={
        "test_the_whole_log_is_read_back": _reads(_without_the_last),
        "test_a_log_of_many_pieces_is_read_back": _reads(_five_pieces),
        "test_the_hash_is_that_of_the_log_that_was_given": _writes(_unhashed),
        "test_a_range_of_the_log_is_read_back": _reads(_no_second_piece),
        "test_a_range_outside_the_log_is_refused": _reads(_clamped),
        "test_a_small_file_is_read_back": _indexes(lambda *args: _sound_index(*args) or None),
        "test_results_have_the_types_of_the_contract": _indexes(lambda *args: bytearray(_sound_index(*args) or b"")),
        "test_views_are_as_good_as_bytes": _made(read=_needs_bytes),
        "test_a_file_that_the_segment_lacks_is_none": _indexes(_empty_if_missing),
        "test_a_segment_without_bytes_is_stored": _writes(_refuses_empty),
        "test_the_entry_says_what_was_stored": _writes(result=_unknown_object),
        "test_slices_lie_inside_their_objects": _beyond,
        "test_the_entry_survives_json": _writes(
            result=lambda stored: replace(stored, extra={**stored.extra, "sizes": (1, 2)})
        ),
        "test_sources_are_read_again_when_an_upload_is_retried": _hashes_all_passes,
        "test_pieces_of_any_size_are_taken": _writes(_first_chunk),
        "test_two_segments_share_nothing": _remembers,
        "test_damage_to_the_log_shows_when_all_of_it_is_read": _reads(_unverified),
        "test_a_reply_of_another_size_is_corruption": _reads(_short_replies),
        "test_segments_are_found_without_a_manifest": _discovers(_without_notes),
        "test_a_check_finds_nothing_in_sound_objects": _made(check=lambda *_: True),
        "test_a_check_finds_a_damaged_further_object": _made(check=lambda *_: None),
        "test_a_layout_says_if_it_takes_uncompressed_batches": _made(takes_uncompressed="yes"),
        "test_columns_of_bytes_that_are_no_batches_are_left_to_the_core": _made(read_arrow=lambda *_: iter(())),
        "test_an_authenticator_distinguishes_roots_and_keys": _made(authenticator=lambda _: _ConstantMac()),
        "test_wrapping_keys_again_changes_no_read": _made(rewrapped=lambda _, stored: replace(stored, sha256="0" * 64)),
        "test_objects_that_are_no_segment_are_ignored": _discovers(_no_short_objects),
        "test_a_cut_object_is_a_typed_error": _indexes(_cut_index),
        "test_a_flipped_bit_is_harmless_or_a_typed_error": _indexes(_unverified_index),
        "test_objects_that_changed_places_are_noticed": _reads(_by_sum),
        "test_a_layouts_notes_are_not_believed": _indexes(_believes_notes),
        "test_large_numbers_in_a_layouts_notes_take_little_memory": _indexes(_allocates_by_notes),
        "test_a_slice_with_wrong_positions_is_a_typed_error": _indexes(_believes_slices),
        "test_damaged_objects_do_not_stop_a_rebuild_untyped": _discovers(_untyped),
    },
)
