"""Extra indexes: indexes of a segment's records, which plugins define. Readers use them to skip segments.

Extra indexes are built for closed segments only, in the background, and never delay an append. They are disposable: if
an index is missing, damaged or built for other bytes than the segment has now, the segment is read. The core defines
the file that holds the indexes and decides when to rewrite it (docs/formats/extra.md).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from stratalog.config.topic import TopicConfig
from stratalog.model.batches import Buffer
from stratalog.model.records import Fields, RecordColumns
from stratalog.spi.indexes import IndexRole


class ExtraIndexBuilder(ABC):
    """A builder of the extra index of one segment. Used by one thread."""

    @abstractmethod
    def add(self, records: RecordColumns) -> None:
        """Add records to the index, in ascending order, about 1 MiB of log per call.

        Records of aborted transactions are included, because read_uncommitted readers see them. Transaction markers are
        left out. The memory of the columns is reused after the call: copy the data that the builder keeps.
        """

    @abstractmethod
    def finish(self) -> Buffer:
        """Return the index after all records were added; ``b""`` if the index would be useless.

        The result depends only on the records and on the fields that the index reads. It must not depend on how the
        records were divided into calls of ``add``, or on further fields. Builders share no state.
        An index may be useless if there are too many keys. The core drops an index above 64 MiB and logs a warning.
        """


class ExtraIndexReader:
    """A reader of the extra index of one segment. Thread-safe. A plugin may add methods for further queries."""

    def may_hold_key(self, key: bytes) -> bool:
        """Return False only if no record of the segment can have this key, else True.

        A result that is no bool, such as None, counts as True and is reported as an error of the plugin. The default
        implementation returns True. An index that does not contain keys uses it.
        """
        del key
        return True


class ExtraIndex(ABC):
    """One kind of extra index. A topic lists any number of kinds in ``index.extra``.

    The plugin defines the bytes of the index; ``Provider.version`` is the version of this format. The core rebuilds an
    index that was written by another version.

    Attributes:
        role: ``IndexRole.EXTRA`` for all kinds.
        fields: record fields that a builder reads. The builder may get more fields, if another index of the topic reads
            them.
    """

    role: ClassVar[IndexRole] = IndexRole.EXTRA
    fields: ClassVar[Fields] = Fields.KEY

    @abstractmethod
    def builder(self, config: TopicConfig) -> ExtraIndexBuilder:
        """Return a builder for one segment of a topic."""

    @abstractmethod
    def reader(self, data: Buffer) -> ExtraIndexReader:
        """Return a reader over ``data``, the bytes that a builder made; never ``b""``.

        ``data`` can be any buffer. The reader may keep it and must not change it.

        Raises:
            CorruptIndexError: no builder makes such bytes. The segment is then read without the index.
        """
