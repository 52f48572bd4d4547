"""Index formats that break one rule each. All are offset indexes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from contract_mutants import ContractMutants, MutantError, altered, result_of
from stratalog.errors import CorruptIndexError
from stratalog.spi import AbortedTransaction, Buffer, IndexBuilder, IndexFormat, OffsetPosition, PreparedBatches
from stratalog.testing.contracts import IndexFormatContract
from stratalog_formats.indexes.offset import OffsetIndex, OffsetReader
from stratalog_formats.kernels.dispatch import PYTHON

_SIZE: Final = OffsetIndex.entry_bytes


class WrappedBuilder(IndexBuilder):
    """A builder that delegates to a correct builder."""

    __slots__ = ("count", "finishes", "sound")

    def __init__(self, sound: IndexBuilder) -> None:
        self.sound, self.count, self.finishes = sound, 0, 0

    @property
    def full(self) -> bool:
        """Return True if the correct builder is full."""
        return self.sound.full

    def add(self, batches: PreparedBatches, position: int, aborted: Mapping[int, AbortedTransaction]) -> bytes:
        """Add the batches to the correct builder."""
        self.count += 1
        return self.sound.add(batches, position, aborted)

    def finish(self) -> bytes:
        """Return the final bytes of the correct builder."""
        return self.sound.finish()


def _made(**changes: Any) -> Callable[[Path], IndexFormat[Any]]:
    return lambda _: altered(OffsetIndex(PYTHON), **changes)


def _builds(**changes: Any) -> Callable[[Path], IndexFormat[Any]]:
    """Return a format with changed builders."""
    return _made(builder=result_of(OffsetIndex, "builder", lambda builder: altered(WrappedBuilder(builder), **changes)))


def _reads(**changes: Any) -> Callable[[Path], IndexFormat[Any]]:
    """Return a format with changed readers."""
    return _made(reader=result_of(OffsetIndex, "reader", lambda reader: altered(reader, **changes)))


def _checks(change: Callable[[OffsetReader, int, int], None]) -> Callable[[Path], IndexFormat[Any]]:
    """Return a format whose readers have another check."""
    return _reads(check=change)


def _half_an_entry(self: WrappedBuilder, *args: Any) -> bytes:
    entries = WrappedBuilder.add(self, *args)
    return entries[: _SIZE // 2] if entries and self.count > 20 else entries


def _always_full(self: WrappedBuilder) -> bool:
    return self.count > 90 and not self.sound.full


def _finishes_twice(self: WrappedBuilder) -> bytes:
    self.finishes += 1
    return WrappedBuilder.finish(self) if self.finishes == 1 else bytes(_SIZE)


def _forgets(_: Any, base_offset: int, config: Any, *, entries: Buffer = b"") -> IndexBuilder:
    return OffsetIndex(PYTHON).builder(base_offset + 300 if entries else base_offset, config)


def _one_entry_a_call(self: WrappedBuilder, batches: PreparedBatches, *args: Any) -> bytes:
    entries = WrappedBuilder.add(self, batches, *args)
    return entries[-_SIZE:]


def _of_markers(self: WrappedBuilder, batches: PreparedBatches, position: int, aborted: Any) -> bytes:
    entries = WrappedBuilder.add(self, batches, position, aborted)
    return entries + bytes(_SIZE) if len(aborted) > 1 else entries


def _no_iteration(self: OffsetReader) -> Iterator[OffsetPosition]:
    return (self[index] for index in range(len(self) - 1))


def _copies(_: Any, entries: Buffer, base_offset: int) -> Any:
    return OffsetReader(bytes(entries), base_offset)


def _pads(_: Any, entries: Buffer, base_offset: int) -> Any:
    return OffsetReader(bytes(entries) + bytes(-len(entries) % _SIZE), base_offset)


def _floor_below(self: OffsetReader, target: int) -> OffsetPosition | None:
    return OffsetReader.floor(self, target - 1)


def _after_above(self: OffsetReader, target: int) -> OffsetPosition | None:
    return OffsetReader.after(self, target + 1)


def _first_twice(_: Any, entries: Buffer, base_offset: int, target: int) -> Any:
    position = OffsetReader(entries, base_offset).floor(target)
    return position, position, None


def _never_sound(self: OffsetReader, end_offset: int, size_bytes: int) -> None:
    OffsetReader.check(self, end_offset, size_bytes)
    if len(self) > 10:
        raise CorruptIndexError("never sound", "", 0)


def _whole_entries(self: OffsetReader, end_offset: int, size_bytes: int) -> None:
    OffsetReader(self._entries[: len(self) * _SIZE], self._base_offset).check(end_offset, size_bytes)


def _unless(is_passed: Callable[[OffsetReader, CorruptIndexError], bool]) -> Callable[[OffsetReader, int, int], None]:
    def check(self: OffsetReader, end_offset: int, size_bytes: int) -> None:
        try:
            OffsetReader.check(self, end_offset, size_bytes)
        except CorruptIndexError as error:
            if not is_passed(self, error):
                raise

    return check


def _is_second(_: OffsetReader, error: CorruptIndexError) -> bool:
    return error.position == _SIZE


def _is_zero(self: OffsetReader, error: CorruptIndexError) -> bool:
    return bytes(self._entries[error.position : error.position + _SIZE]) == bytes(_SIZE)


def _is_beyond(self: OffsetReader, error: CorruptIndexError) -> bool:
    return not self._entries[error.position + _SIZE - 1 :].tobytes().endswith(bytes(8)) and error.position > _SIZE


def _untyped(self: OffsetReader, target: int) -> OffsetPosition | None:
    offset_position = OffsetReader.floor(self, target)
    if offset_position is not None and offset_position.position < 0:
        raise MutantError("damaged")
    return offset_position


def _keeps_too_much(_: Any, entries: Buffer, base_offset: int, end_offset: int) -> int:
    return OffsetReader(entries, base_offset).kept_bytes(end_offset + 1)


MUTANTS: Final = ContractMutants(
    contract=IndexFormatContract,
    fixture="index_format",
    sound=_made(),
    mutants={
        "test_names_its_file_and_entries": _made(suffix="index"),
        "test_no_batches_make_no_entries": _builds(
            finish=lambda self: WrappedBuilder.finish(self) if self.count else bytes(_SIZE)
        ),
        "test_builder_makes_whole_entries": _builds(add=_half_an_entry),
        "test_results_have_the_types_of_the_contract": _builds(
            finish=lambda self: bytearray(WrappedBuilder.finish(self))
        ),
        "test_finishing_twice_adds_nothing_twice": _builds(finish=_finishes_twice),
        "test_builder_continues": _made(builder=_forgets),
        "test_a_table_of_batches_counts_as_its_rows": _builds(add=_one_entry_a_call),
        "test_markers_of_other_batches_are_ignored": _builds(add=_of_markers),
        "test_builder_says_when_it_is_full": _builds(full=property(_always_full)),
        "test_reader_sees_every_entry": _reads(__iter__=_no_iteration),
        "test_reader_does_not_copy": _made(reader=_copies),
        "test_reader_leaves_out_a_partial_entry": _made(reader=_pads),
        "test_floor_finds_the_last_entry_at_or_below": _reads(floor=_floor_below),
        "test_after_finds_the_first_entry_at_or_above": _reads(after=_after_above),
        "test_around_is_the_floor_and_what_follows_it": _made(around=_first_twice),
        "test_check_accepts_what_was_built": _checks(_never_sound),
        "test_check_refuses_a_partial_entry": _checks(_whole_entries),
        "test_check_refuses_entries_out_of_order": _checks(_unless(_is_second)),
        "test_check_refuses_reserved_space": _checks(_unless(_is_zero)),
        "test_check_refuses_entries_past_the_segment": _checks(_unless(_is_beyond)),
        "test_any_bytes_are_searched_or_refused": _reads(floor=_untyped),
        "test_kept_bytes_keeps_entries_below_the_end": _made(kept_bytes=_keeps_too_much),
    },
)
