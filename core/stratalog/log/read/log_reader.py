"""What anybody may do with a log: read it."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING

from stratalog.env.forks import ends_with_fork
from stratalog.log.read.columns import read_columns
from stratalog.log.read.fetch import Fetched, FetchRequest, fetch
from stratalog.log.read.key_lookup import SegmentExtra, records_with_key, segment_extras
from stratalog.log.read.parallel_table import read_table
from stratalog.log.read.time_lookup import TimeFences, offset_for_timestamp
from stratalog.log.read.transfer import Transfer, transfer
from stratalog.log.read.view import LogView
from stratalog.model.arguments import CheckedArguments
from stratalog.model.names import TopicId, TopicPartition
from stratalog.model.offsets import EpochEnd, Isolation, LogOffsets
from stratalog.model.records import Fields, Record, RecordColumns
from stratalog.model.segment_info import share_bytes
from stratalog.segment.components import Components
from stratalog.segment.segment import Segment
from stratalog.spi.cleanup import SegmentSummary

if TYPE_CHECKING:
    import socket

    import pyarrow  # noqa: ICN001 - a type alone


class LogReader(CheckedArguments, ABC):
    """One log of either tier, for reading. Thread-safe; takes no lock that an append would wait for.

    Isolation is ``"read_uncommitted"`` (up to the high watermark), ``"read_committed"`` (up to the last stable offset,
    without aborted transactions) or ``"log_end"``.

    Attributes:
        name: topic and partition.
        topic_id: the topic's id, None for directories older than topic ids.
    """

    def __init__(self, name: TopicPartition, topic_id: TopicId | None, parts: Components) -> None:
        self.name, self.topic_id, self._parts = name, topic_id, parts
        self._fences: TimeFences | None = None  # made when it is first asked for a time: logs are many
        ends_with_fork(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.name)!r})"

    @property
    def parts(self) -> Components:
        """The components that the log is read with."""
        return self._parts

    @abstractmethod
    def view(self) -> LogView:
        """The state as of now: one immutable value."""

    def offsets(self) -> LogOffsets:
        """All bounds, of one view."""
        return self.view().offsets

    @property
    def latest_epoch(self) -> int:
        """The latest leader epoch of which the log has records; -1 if none is known."""
        return self.view().epochs.latest

    def columns(
        self,
        start: int = 0,
        end: int | None = None,
        isolation: str = "read_uncommitted",
        fields: Fields = Fields.ALL,
    ) -> Iterator[RecordColumns]:
        """Records as columns, about 1 MiB of log at a time; arguments and errors as ``records``."""
        return read_columns(self.view, self._parts, start, end, isolation, fields)

    def records(self, start: int = 0, end: int | None = None, isolation: str = "read_uncommitted") -> Iterator[Record]:
        """The records with offsets in [start, end), in order; control records are never shown.

        Args:
            start: 0 is the log start, wherever that is.
            end: exclusive; None is the isolation's bound when iteration begins.
            isolation: how far a reader sees.

        Raises:
            OffsetOutOfRangeError: ``start`` is not 0 and below the log start, or above the log end.
            CorruptBatchError: a bad entry; all good records before it have been yielded.
        """
        partition = self.name.partition
        pieces = (columns.iter_records(partition) for columns in self.columns(start, end, isolation))
        return itertools.chain.from_iterable(pieces)  # no generator of ours runs for each record

    def records_with_key(
        self, key: bytes, start: int = 0, end: int | None = None, isolation: str = "read_uncommitted"
    ) -> Iterator[Record]:
        """The records with this key, in order: of ``records`` those whose key it is, whatever indexes there are.

        Segments whose EXTRA indexes say that they do not hold the key (``index.extra``) are not read, nor fetched from a
        tier. The segment that appends go to is always read.

        Args:
            key: the whole key.
            start: 0 is the log start, wherever that is.
            end: exclusive; None is the isolation's bound when iteration begins.
            isolation: how far a reader sees.

        Raises:
            As ``records``; damage in a segment that is not read is not met.
            TypeError: the key is no bytes.
        """
        return records_with_key(self.view, self._parts, key, start, end, isolation, self.name.partition)

    def extra_index(self, name: str) -> Iterator[SegmentExtra]:
        """An EXTRA index of each segment of both tiers, oldest first: its author says what its readers can be asked.

        Raises:
            UnknownComponentError: the topic names no index of this name (``index.extra``); of who only reads: none is
                installed.
        """
        return segment_extras(self.view(), self._parts.extras, name)

    def to_arrow(self, start: int = 0, end: int | None = None, isolation: str = "read_uncommitted") -> pyarrow.Table:
        """The same records as one Arrow table in ``arrow_schema()``; needs the extra ``arrow``.

        A long range on local disk is read by ``limits.arrow.threads`` threads, the caller's among them.
        """
        return read_table(self.view, self._parts, start, end, isolation, self.name.partition)

    def fetch(
        self,
        offset: int,
        max_bytes: int = 1 << 20,
        isolation: str = "read_uncommitted",
        *,
        min_one_batch: bool = True,
        current_leader_epoch: int | None = None,
        last_fetched_epoch: int | None = None,
    ) -> Fetched:
        """Raw batches from the one that holds ``offset``: whole ones, of one segment.

        Args:
            offset: the first one that is wanted; batches may begin below it.
            max_bytes: at most so many.
            isolation: how far a reader sees; replicas read with ``"log_end"``.
            min_one_batch: the first batch comes even if it is above ``max_bytes``: else a reader would never get on.
            current_leader_epoch: the one that the caller takes for the log's; None is not checked.
            last_fetched_epoch: of the last record before ``offset`` that a replica has. Where its log and this one part
                the result holds no batches, but ``diverging``.

        Raises:
            OffsetOutOfRangeError: ``offset`` is below the log start or above the log end, or ``last_fetched_epoch`` is
                not known here.
            StaleLeaderEpochError, UnknownLeaderEpochError: ``current_leader_epoch`` is not the log's.
        """
        asked = FetchRequest(
            offset, max_bytes, Isolation.of(isolation), min_one_batch, current_leader_epoch, last_fetched_epoch
        )
        return fetch(self.view, self._parts, asked)

    def transfer(
        self,
        offset: int,
        max_bytes: int = 1 << 20,
        isolation: str = "read_uncommitted",
        *,
        min_one_batch: bool = True,
        current_leader_epoch: int | None = None,
        last_fetched_epoch: int | None = None,
    ) -> Transfer:
        """What ``fetch`` returns, to be sent to a socket: nothing of it is read but the batches at both ends.

        How many bytes it will be is known at once, for whoever has to announce it. Arguments and errors as ``fetch``.
        """
        asked = FetchRequest(
            offset, max_bytes, Isolation.of(isolation), min_one_batch, current_leader_epoch, last_fetched_epoch
        )
        return transfer(self.view, self._parts, asked)

    def send_to(
        self, to: socket.socket, offset: int, max_bytes: int = 1 << 20, isolation: str = "read_uncommitted"
    ) -> Transfer:
        """Send batches to a socket, by ``sendfile`` where they are in a local file and the socket is a plain one.

        Returns:
            The transfer, which has sent what the socket took: a non-blocking one may leave some for ``Transfer.send``.

        Raises:
            OSError: of the socket; what it took is not told. Use ``transfer`` to go on after one.
            Others as ``fetch``.
        """
        sending = self.transfer(offset, max_bytes, isolation)
        try:
            sending.send(to)
        except BaseException:
            sending.release()
            raise
        return sending

    def end_offset_for_epoch(self, epoch: int, current_leader_epoch: int | None = None) -> EpochEnd:
        """Where a leader epoch ends in this log: what a replica asks its leader to find where they part.

        Args:
            epoch: the latest one in the replica's log.
            current_leader_epoch: the one that the caller takes for the log's; None is not checked.

        Returns:
            The largest epoch at or below it, with the first offset after that; the latest ends at the log end. The epoch
            itself with the first known offset, if it is older than all that is known. (-1, -1) for -1 or a later epoch.

        Raises:
            StaleLeaderEpochError, UnknownLeaderEpochError: ``current_leader_epoch`` is not the log's.
        """
        view = self.view()
        view.check_leader_epoch(current_leader_epoch)
        return view.epoch_end(epoch)

    def offset_for_timestamp(self, timestamp_ms: int, isolation: str = "read_uncommitted") -> int | None:
        """The offset of the first record with a timestamp at or above ``timestamp_ms``; None if there is none."""
        fences = self._fences = self._fences or TimeFences()
        found = offset_for_timestamp(self.view, self._parts, timestamp_ms, isolation, fences)
        return None if found is None else found.offset

    def segments(self) -> tuple[SegmentSummary, ...]:
        """All segments of both tiers, oldest first; one that is in both stands once."""
        return summaries(self.view())


def summaries(view: LogView) -> tuple[SegmentSummary, ...]:
    """The segments of a view, for tables and for cleanup policies."""
    remote_end = view.remote.end_offset if view.remote is not None and view.remote.segments else -1
    local_start = view.segments[0].base_offset if view.segments else view.offsets.log_end
    listed = []
    for segment in view.stored():
        local = isinstance(segment, Segment)
        base, end, size_bytes = segment.base_offset, segment.end_offset, segment.size_bytes
        if not local and end > local_start:  # local disk has the rest, under other borders
            size_bytes = share_bytes(size_bytes, base, end, base, local_start)
        active = local and segment is view.segments[-1]
        listed.append(
            SegmentSummary(
                base_offset=base,
                end_offset=end,
                size_bytes=size_bytes,
                age_from_ms=segment.age_from_ms,
                is_local=local,
                is_remote=not local or (not active and segment.end_offset <= remote_end),
                is_active=active,
            )
        )
    return tuple(listed)
