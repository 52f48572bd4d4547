"""Extra indexes that break one rule each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from contract_mutants import ContractMutants, MutantError, altered, result_of
from extra_indexes import IndexCalls, KeySet, SetBuilder, SetReader
from stratalog import RecordColumns
from stratalog.errors import CorruptIndexError
from stratalog.spi import Buffer, ExtraIndex
from stratalog.testing.contracts import ExtraIndexContract

_LONG: Final = 100


def _made(**changes: Any) -> Callable[[Path], ExtraIndex]:
    return lambda _: altered(KeySet(IndexCalls()), **changes)


def _builds(change: Callable[[Any], Any]) -> Callable[[Path], ExtraIndex]:
    """Return an index with changed builders."""
    return _made(builder=result_of(KeySet, "builder", change))


def _reads(reader: Callable[[ExtraIndex, Buffer], Any]) -> Callable[[Path], ExtraIndex]:
    """Return an index whose method ``reader`` is replaced."""
    return _made(reader=reader)


def _answers(answer: Callable[[SetReader, bytes], Any]) -> Callable[[Path], ExtraIndex]:
    """Return an index whose readers return another result of ``may_hold_key``."""
    return _made(reader=result_of(KeySet, "reader", lambda reader: altered(reader, may_hold_key=answer)))


class _CountingBuilder(SetBuilder):
    """Builder that counts the calls of ``add`` and the records, and notes if it got values."""

    calls = 0
    count = 0
    has_values = False

    def add(self, records: RecordColumns) -> None:
        """Add the records, and count them."""
        super().add(records)
        self.calls += 1
        self.count += records.count
        self.has_values |= len(records.value_size) > 0


def _finishes(finish: Callable[[_CountingBuilder, bytes], bytes]) -> Callable[[Path], ExtraIndex]:
    """Return an index whose builders change the bytes that ``finish`` returns."""

    def counting(builder: SetBuilder) -> Any:
        object.__setattr__(builder, "__class__", _CountingBuilder)
        return altered(builder, finish=lambda self: finish(self, SetBuilder.finish(self)))

    return _builds(counting)


def _empty_is_unknown(_: ExtraIndex, data: Buffer) -> Any:
    if bytes(data) == b"SET":
        raise MutantError("nothing to read")
    return SetReader(data, IndexCalls())


def _shared(folder: Path) -> ExtraIndex:
    items = set[bytes]()

    def share(builder: Any) -> Any:
        builder._items = items  # noqa: SLF001 - a mutant
        return builder

    return _builds(share)(folder)


def _marks_read(_: ExtraIndex, data: Buffer) -> Any:
    reader = SetReader(data, IndexCalls())
    if isinstance(data, bytearray):
        data[0] = 0
    return reader


def _untyped(_: ExtraIndex, data: Buffer) -> Any:
    try:
        return SetReader(data, IndexCalls())
    except CorruptIndexError as error:
        raise MutantError("damaged") from error


MUTANTS: Final = ContractMutants(
    contract=ExtraIndexContract,
    fixture="extra_index",
    sound=_made(),
    mutants={
        "test_says_what_it_looks_at": _made(fields="keys"),
        "test_no_key_that_is_there_is_denied": _answers(
            lambda self, key: len(key) < _LONG and SetReader.may_hold_key(self, key)
        ),
        "test_answers_are_true_or_false": _answers(lambda self, key: SetReader.may_hold_key(self, key) or None),
        "test_one_record_is_enough": _finishes(lambda self, data: b"SET" if self.count == 1 else data),
        "test_nothing_comes_of_no_records": _reads(_empty_is_unknown),
        "test_made_again_it_is_the_same": _finishes(lambda self, data: data + b"|%02x" % (self.calls % 256)),
        "test_requests_of_other_callers_change_no_answer": _finishes(
            lambda self, data: data + b"|00" if self.has_values else data
        ),
        "test_builders_know_nothing_of_each_other": _shared,
        "test_reads_any_buffer_and_changes_none": _reads(_marks_read),
        "test_any_bytes_are_answered_from_or_refused": _reads(_untyped),
    },
)
