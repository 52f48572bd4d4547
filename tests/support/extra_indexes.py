"""Extra indexes for tests: they contain exactly the keys and values of a segment, and fail on request."""

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
class Told:
    """Calls to the indexes of one plugin, and planned failures: of a builder, a reader, or a reader's answers."""

    builders: int = 0
    records: int = 0
    failing: frozenset[str] = frozenset()
    failing_index: str = ""  # the index all of whose builders fail
    made: bytes | None = None  # what builders make instead
    answer: tuple[Any] | None = None  # what ``may_hold_key`` returns instead; Any: whatever its author returns

    def check(self, what: str) -> None:
        """Raise if ``what`` must fail."""
        if what in self.failing:
            raise ZeroDivisionError(f"the {what} fails")


class SetReader(ExtraIndexReader):
    """Reads what ``SetBuilder`` makes; ``items`` are the keys, or the values."""

    def __init__(self, data: Buffer, told: Told) -> None:
        told.check("reader")
        self._told = told
        head, *items = bytes(data).split(b"|")
        if head != _HEAD:
            raise CorruptIndexError("this is no set", "", 0)
        try:
            self.items = {bytes.fromhex(item.decode()) for item in items}
        except ValueError as error:
            raise CorruptIndexError("this is no set of bytes", "", 0) from error

    def may_hold_key(self, key: bytes) -> bool:
        """Exactly the keys that are there."""
        self._told.check("answer")
        if self._told.answer is not None:
            return self._told.answer[0]  # type: ignore[no-any-return] # a plugin may return anything
        return key in self.items


class ValueReader(SetReader):
    """Of values; of keys it knows nothing."""

    def may_hold_key(self, key: bytes) -> bool:
        """As the default."""
        return ExtraIndexReader.may_hold_key(self, key)


class SetBuilder(ExtraIndexBuilder):
    """Collects the keys, or the values."""

    def __init__(self, told: Told, fields: Fields) -> None:
        told.check("builder")
        if told.failing_index == ("keyset" if fields is Fields.KEY else "valueset"):
            raise ZeroDivisionError("this index fails")
        told.builders += 1
        self._told, self._fields, self._items = told, fields, set[bytes]()

    def add(self, records: RecordColumns) -> None:
        """Collect."""
        self._told.check("add")
        self._told.records += records.count
        items = records.keys() if self._fields is Fields.KEY else records.values()
        assert len(items) == records.count
        self._items.update(item for item in items if item is not None)

    def finish(self) -> bytes:
        """All of them, in order."""
        self._told.check("finish")
        if self._told.made is not None:
            return self._told.made
        return b"|".join([_HEAD, *(item.hex().encode() for item in sorted(self._items))])


class KeySet(ExtraIndex):
    """The keys of a segment."""

    def __init__(self, told: Told) -> None:
        self._told = told

    def builder(self, config: TopicConfig) -> ExtraIndexBuilder:
        """A builder."""
        del config
        return SetBuilder(self._told, self.fields)

    def reader(self, data: Buffer) -> ExtraIndexReader:
        """A reader."""
        return SetReader(data, self._told)


class ValueSet(KeySet):
    """The values of a segment."""

    fields: ClassVar[Fields] = Fields.VALUE

    def reader(self, data: Buffer) -> ExtraIndexReader:
        """A reader."""
        return ValueReader(data, self._told)


@dataclass(eq=False)
class ExtraPlugin:
    """Offers ``keyset`` and ``valueset``; ``version`` is that of the bytes."""

    version: int = 1
    told: Told = field(default_factory=Told)

    @hookimpl
    def stratalog_extra_indexes(self) -> Iterable[Provider[ExtraIndex]]:
        """Both."""

        def keys(context: OpenContext) -> ExtraIndex:
            del context
            return KeySet(self.told)

        def values(context: OpenContext) -> ExtraIndex:
            del context
            return ValueSet(self.told)

        return (
            Provider(name="keyset", open=keys, version=self.version),
            Provider(name="valueset", open=values, version=self.version),
        )
