"""Extra indexes for tests: they contain exactly the keys or values of a segment, and can fail as planned."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from stratalog import RecordColumns
from stratalog.errors import CorruptIndexError
from stratalog.spi import (
    Buffer,
    ExtraIndex,
    ExtraIndexBuilder,
    ExtraIndexReader,
    Fields,
    OpenContext,
    Provider,
    TopicConfig,
    hookimpl,
)

_HEAD = b"SET"


@dataclass
class IndexCalls:
    """Counts of the calls to the indexes of one plugin, and planned failures of builders, readers, or results.

    Attributes:
        builders: number of builders that were created.
        records: number of records that builders got.
        failing: operations that fail: ``builder``, ``add``, ``finish``, ``reader``, ``answer``.
        failing_index: name of the index whose builders all fail.
        made: bytes that ``finish`` returns instead of the index; None for the index.
        answer: tuple with the result of ``may_hold_key``; None for the correct result.
    """

    builders: int = 0
    records: int = 0
    failing: frozenset[str] = frozenset()
    failing_index: str = ""  # all builders of the index of this name fail
    made: bytes | None = None  # bytes that ``finish`` returns instead of the index
    # result of ``may_hold_key`` instead of the correct one; Any: tests also return wrong types
    answer: tuple[Any] | None = None

    def check(self, what: str) -> None:
        """Raise ZeroDivisionError if the operation ``what`` must fail."""
        if what in self.failing:
            raise ZeroDivisionError(f"the {what} fails")


class SetReader(ExtraIndexReader):
    """Reads the bytes that ``SetBuilder`` writes; ``items`` are the keys, or the values."""

    def __init__(self, data: Buffer, calls: IndexCalls) -> None:
        calls.check("reader")
        self._calls = calls
        head, *items = bytes(data).split(b"|")
        if head != _HEAD:
            raise CorruptIndexError("this is no set", "", 0)
        try:
            self.items = {bytes.fromhex(item.decode()) for item in items}
        except ValueError as error:
            raise CorruptIndexError("this is no set of bytes", "", 0) from error

    def may_hold_key(self, key: bytes) -> bool:
        """Return True if the segment contains the key."""
        self._calls.check("answer")
        if self._calls.answer is not None:
            return self._calls.answer[0]  # type: ignore[no-any-return] # a plugin may return anything
        return key in self.items


class ValueReader(SetReader):
    """Reader of an index of values."""

    def may_hold_key(self, key: bytes) -> bool:
        """Return the default of ``ExtraIndexReader``: an index of values does not know keys."""
        return ExtraIndexReader.may_hold_key(self, key)


class SetBuilder(ExtraIndexBuilder):
    """Builder that collects the keys, or the values, of a segment."""

    def __init__(self, calls: IndexCalls, fields: Fields) -> None:
        calls.check("builder")
        if calls.failing_index == ("keyset" if fields is Fields.KEY else "valueset"):
            raise ZeroDivisionError("this index fails")
        calls.builders += 1
        self._calls, self._fields, self._items = calls, fields, set[bytes]()

    def add(self, records: RecordColumns) -> None:
        """Collect the keys or values that are not null."""
        self._calls.check("add")
        self._calls.records += records.count
        items = records.keys() if self._fields is Fields.KEY else records.values()
        assert len(items) == records.count
        self._items.update(item for item in items if item is not None)

    def finish(self) -> bytes:
        """Return the collected items in ascending order."""
        self._calls.check("finish")
        if self._calls.made is not None:
            return self._calls.made
        return b"|".join([_HEAD, *(item.hex().encode() for item in sorted(self._items))])


class KeySet(ExtraIndex):
    """Extra index of the keys of a segment."""

    def __init__(self, calls: IndexCalls) -> None:
        self._calls = calls

    def builder(self, config: TopicConfig) -> ExtraIndexBuilder:
        """Return a builder."""
        del config
        return SetBuilder(self._calls, self.fields)

    def reader(self, data: Buffer) -> ExtraIndexReader:
        """Return a reader of these bytes."""
        return SetReader(data, self._calls)


class ValueSet(KeySet):
    """Extra index of the values of a segment."""

    fields: ClassVar[Fields] = Fields.VALUE

    def reader(self, data: Buffer) -> ExtraIndexReader:
        """Return a reader of these bytes."""
        return ValueReader(data, self._calls)


@dataclass(eq=False)
class ExtraPlugin:
    """Plugin with the extra indexes ``keyset`` and ``valueset``. ``version`` is the version of their bytes."""

    version: int = 1
    calls: IndexCalls = field(default_factory=IndexCalls)

    @hookimpl
    def stratalog_extra_indexes(self) -> Iterable[Provider[ExtraIndex]]:
        """Offer both indexes."""

        def keys(context: OpenContext) -> ExtraIndex:
            del context
            return KeySet(self.calls)

        def values(context: OpenContext) -> ExtraIndex:
            del context
            return ValueSet(self.calls)

        return (
            Provider(name="keyset", open=keys, version=self.version),
            Provider(name="valueset", open=values, version=self.version),
        )
