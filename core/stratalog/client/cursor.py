"""Where a consumer stands in one partition."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from stratalog.client.log_access import Logs
from stratalog.errors import StorageError
from stratalog.log.read.log_reader import LogReader
from stratalog.model.batches import NO_EPOCH
from stratalog.model.names import TopicPartition
from stratalog.model.offsets import Isolation
from stratalog.model.records import Record


class Cursor:
    """A position, and the records from there on.

    The log is asked for each time: it may be deleted, made again, or move to another directory.

    Args:
        logs: of the engine.
        name: of the partition.
        isolation: how far is read.

    Attributes:
        name: of the partition.
        position: offset of the next record; None before one was chosen.
        leader_epoch: of the record before the position, -1 if it is not known.
        cut_at: where the log was cut below the position since that record was read, None if it was not.
        paused: whether a poll passes it over.
    """

    def __init__(self, logs: Logs, name: TopicPartition, isolation: Isolation) -> None:
        self.name = name
        self.position: int | None = None
        self.leader_epoch, self.paused = NO_EPOCH, False
        self.cut_at: int | None = None
        self._logs, self._isolation = logs, isolation
        self._records: Iterator[Record] | None = None
        self._source: LogReader | None = None  # of _records
        self._end = 0  # where _records end

    @property
    def _log(self) -> LogReader:
        return self._logs.log(*self.name)

    def seek(self, position: int | None) -> None:
        """Go on elsewhere."""
        self.position, self.leader_epoch, self.cut_at, self._records = position, NO_EPOCH, None, None

    def seek_behind(self, position: int, leader_epoch: int) -> None:
        """Go on behind a record of ``leader_epoch``, and see whether the log still has it.

        A log that goes on from its tier, or that an unclean leader cut, gives the same offsets to other records, in
        another epoch. Source: KIP-320, the consumer's validation of positions by OffsetsForLeaderEpoch.
        """
        self.seek(position)
        self.leader_epoch = leader_epoch
        end = self._log.end_offset_for_epoch(leader_epoch).end_offset
        self.cut_at = end if 0 <= end < position else None

    def subscribe(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Have ``callback`` called when there may be more to read; what is returned ends that."""
        return self._logs.log(*self.name).subscribe(lambda _: callback())

    def first(self) -> int:
        """The log start."""
        return self._log.offsets().log_start

    def end(self) -> int:
        """The offset that the isolation does not go past."""
        return self._log.offsets().bound(self._isolation)

    def last(self) -> int:
        """The log end."""
        return self._log.offsets().log_end

    def is_in_range(self) -> bool:
        """Whether there is a position, and the log has it."""
        offsets = self._log.offsets()
        return self.position is not None and offsets.log_start <= self.position <= offsets.log_end

    def read(self, limit: int) -> list[Record]:
        """The next records, at most ``limit``; fewer if there are no more now.

        Raises:
            StorageError: nothing could be read; what was read before an error is returned, and the error raised next.
        """
        assert self.position is not None
        log = self._log
        if self._records is None or log is not self._source:
            self._records, self._source = None, log
            self._end = self.end()
            if self.position >= self._end:
                self._check_damage()
                return []
            self._records = log.records(self.position, self._end, self._isolation)
        found: list[Record] = []
        try:
            found.extend(islice(self._records, limit))
        except StorageError:
            self._records = None
            if not found:
                raise
            self._pass(found)
            return found
        self._pass(found)
        if len(found) < limit:  # what follows up to the end are no records to show: markers, say
            self.position, self._records = max(self.position, self._end), None
        return found

    def _check_damage(self) -> None:
        """At the log end: raise what keeps the log from going on, if it is damaged there."""
        view = self._log.view()
        if view.damage is not None and self.position == view.offsets.log_end:
            raise view.damage.with_traceback(None)

    def _pass(self, found: list[Record]) -> None:
        if found:
            self.position, self.leader_epoch = found[-1].offset + 1, found[-1].leader_epoch

    def offset_for_timestamp(self, timestamp_ms: int) -> int | None:
        """The offset of the first record at or above a timestamp; None if there is none."""
        return self._log.offset_for_timestamp(timestamp_ms, self._isolation)
