"""Extra indexes: indexes of a segment's records that plugins define. Readers use them to skip segments.

Extra indexes are built for closed segments only, in the background, and never delay an append. They are disposable: if
an index is missing or damaged, or is older than the last change of the segment, readers read the segment. The core
defines the file that holds the indexes and decides when to rewrite it (docs/formats/extra.md).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from stratalog.config.topic import TopicConfig
from stratalog.model.batches import Buffer
from stratalog.model.records import Fields, RecordColumns
from stratalog.spi.indexes import IndexRole


class ExtraIndexBuilder(ABC):
    """A builder of the extra index of one segment.

    Only one thread at a time uses a builder, but different calls can run on different threads.
    """

    @abstractmethod
    def add(self, records: RecordColumns) -> None:
        """Add the next records of the segment to the index. Offsets ascend.

        One call passes the records of at most one read of the log (``limits.read.bytes``, 1 MiB by default), or of one
        batch if the batch is larger.

        Records of aborted transactions are included, because read_uncommitted readers see them. Transaction markers are
        not included. The memory of the columns is reused after the call: copy the data that the builder keeps.
        """

    @abstractmethod
    def finish(self) -> Buffer:
        """Return the index after all records were added; ``b""`` if the index would be useless.

        The result depends only on the records and on the fields that the index reads. It must not depend on how the
        records were divided into calls of ``add``, or on columns of other fields. Builders share no state. An index may
        be useless, for example, if there are too many different keys. The core replaces an index above 64 MiB by
        ``b""`` and logs a warning.
        """


class ExtraIndexReader:
    """A reader of the extra index of one segment. Thread-safe. A plugin may add methods for further queries."""

    def may_hold_key(self, key: bytes) -> bool:
        """Return False if it is certain that no record of the segment has this key; otherwise True.

        If the result is not a bool, for example None, the core reads the segment and logs an error of the plugin. The
        default implementation returns True, for an index without keys.
        """
        del key
        return True


class ExtraIndex(ABC):
    """One kind of extra index. Thread-safe.

    The topic setting ``index.extra`` lists the kinds to build, any number of them. The plugin defines the bytes of the
    index; ``Provider.version`` is the version of this format. The core rebuilds an index that was written by another
    version.

    Attributes:
        role: ``IndexRole.EXTRA`` for all kinds.
        fields: record fields that a builder reads. The columns have further fields if another index of the topic reads
            them.
    """

    role: ClassVar[IndexRole] = IndexRole.EXTRA
    fields: ClassVar[Fields] = Fields.KEY

    @abstractmethod
    def builder(self, config: TopicConfig) -> ExtraIndexBuilder:
        """Return a new builder for one segment of a topic with the settings ``config``."""

    @abstractmethod
    def reader(self, data: Buffer) -> ExtraIndexReader:
        """Return a reader of ``data``, an index that a builder of this kind made. ``data`` is never ``b""``.

        ``data`` can be any buffer. The reader may keep it and must not change it.

        Raises:
            CorruptIndexError: a builder of this kind cannot have made ``data``. The core then reads the segment without
                the index.
        """
