"""EXTRA indexes: what a plugin notes of a segment's records, for readers that may leave the segment out.

They are made of closed segments alone, in the background: nothing of them is in the way of an append. They are disposable:
where one is missing, damaged or of other bytes than the segment has now, the segment is read. What the file around them
looks like, and when it is written anew, is the core's affair (docs/formats/extra.md).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from stratalog.config.topic import TopicConfig
from stratalog.model.batches import Buffer
from stratalog.model.records import Fields, RecordColumns
from stratalog.spi.indexes import IndexRole


class ExtraIndexBuilder(ABC):
    """Makes the index of one segment. Used by one thread."""

    @abstractmethod
    def add(self, records: RecordColumns) -> None:
        """Take note of records, ascending, about 1 MiB of log at a time; markers of transactions are left out.

        Those of transactions that were aborted are among them: who reads uncommitted records finds them. The columns are
        over memory that is used again: copy what is kept.
        """

    @abstractmethod
    def finish(self) -> Buffer:
        """The index, once all records were told; ``b""`` if it would be of no use, as where there are too many keys.

        One above 64 MiB is left out, with a warning.
        """


class ExtraIndexReader:
    """Answers from one segment's index. Thread-safe; the author adds methods for whatever else the index knows."""

    def may_hold_key(self, key: bytes) -> bool:
        """Return False only if certainly no record of the segment has this key, else True.

        An answer that is neither, such as None, counts as True and is reported as an error of the plugin. The default is for
        an index that knows nothing of keys.
        """
        del key
        return True


class ExtraIndex(ABC):
    """One kind of EXTRA index. Topics name those that they want in ``index.extra``, any number.

    The bytes are the author's; the provider's ``version`` says which: an index of another version is made anew.

    Attributes:
        role: the same for all.
        fields: what of the records a builder looks at. It may be told more, where another index of the topic wants that.
    """

    role: ClassVar[IndexRole] = IndexRole.EXTRA
    fields: ClassVar[Fields] = Fields.KEY

    @abstractmethod
    def builder(self, config: TopicConfig) -> ExtraIndexBuilder:
        """A builder for one segment of a topic."""

    @abstractmethod
    def reader(self, data: Buffer) -> ExtraIndexReader:
        """A reader over what a builder has made, never ``b""``. ``data`` may be kept, and does not change.

        Raises:
            CorruptIndexError: no builder makes such bytes; the segment is read, then.
        """
