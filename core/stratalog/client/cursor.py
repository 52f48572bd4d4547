"""The position of a consumer in one partition, and reads from that position."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any

from stratalog.client.log_access import Logs
from stratalog.client.serializers import Deserializers
from stratalog.errors import StorageError
from stratalog.log.read.log_reader import LogReader
from stratalog.model.batches import NO_EPOCH
from stratalog.model.names import TopicPartition
from stratalog.model.offsets import Isolation


class Cursor:
    """A consumer's position in a partition, from which ``read`` returns the next records.

    Each method gets the log from ``logs``, and raises the errors of ``Logs.log``.

    Args:
        isolation: isolation level, which bounds the readable records.
        deserializers: converts the records; None for no conversion.

    Attributes:
        position: offset of the next record; None if the position is not set.
        leader_epoch: leader epoch of the record before the position; -1 if unknown.
        truncation_offset: exclusive end offset of ``leader_epoch`` in the log if that offset is below the position: the
            log has then lost the record before the position. Otherwise None.
        paused: True if polls skip the partition.
    """

    def __init__(
        self, logs: Logs, name: TopicPartition, isolation: Isolation, deserializers: Deserializers | None
    ) -> None:
        self.name = name
        self.position: int | None = None
        self.leader_epoch, self.paused = NO_EPOCH, False
        self.truncation_offset: int | None = None
        self._logs, self._isolation = logs, isolation
        self._deserializers = deserializers
        self._records: Iterator[Any] | None = None  # records, deserialized if there are deserializers
        self._source: LogReader | None = None  # log that _records reads
        self._end = 0  # exclusive end offset of _records

    @property
    def _log(self) -> LogReader:
        return self._logs.log(*self.name)

    def seek(self, position: int | None) -> None:
        """Continue at another position; None for no position."""
        self.position, self.leader_epoch, self.truncation_offset, self._records = position, NO_EPOCH, None, None

    def seek_after(self, position: int, leader_epoch: int) -> None:
        """Continue at ``position``, and set ``truncation_offset`` if the log has lost the record before the position.

        ``leader_epoch`` is the leader epoch of the record before the position; -1 if unknown. A log that was attached
        from its tier, or was truncated by an unclean leader, may have other records at the same offsets, in another
        leader epoch. Kafka's consumer makes the same check with OffsetsForLeaderEpoch (KIP-320).
        """
        self.seek(position)
        self.leader_epoch = leader_epoch
        end = self._log.end_offset_for_epoch(leader_epoch).end_offset
        self.truncation_offset = end if 0 <= end < position else None

    def rewind(self, position: int | None, leader_epoch: int) -> None:
        """Continue at an earlier position, whose preceding record has ``leader_epoch``; -1 if unknown."""
        if position != self.position:
            self.position, self.leader_epoch, self._records = position, leader_epoch, None

    def subscribe(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Call ``callback`` when there may be more records. Return a function that cancels the subscription."""
        return self._logs.log(*self.name).subscribe(lambda _: callback())

    def first(self) -> int:
        """Return the log start offset of the partition."""
        return self._log.offsets().log_start

    def end(self) -> int:
        """Return the exclusive end of the offsets that are visible at the isolation level."""
        return self._log.offsets().bound(self._isolation)

    def last(self) -> int:
        """Return the log end offset of the partition."""
        return self._log.offsets().log_end

    def is_in_range(self) -> bool:
        """Return True if a position is set and is between the log start and the log end, both inclusive."""
        offsets = self._log.offsets()
        return self.position is not None and offsets.log_start <= self.position <= offsets.log_end

    def read(self, limit: int) -> list[Any]:
        """Return the next records, at most ``limit``; [] only if no record is available.

        Raises:
            StorageError: no record could be read. If some records were read before an error, these records are
                returned, and the next call raises the error.
        """
        assert self.position is not None
        log = self._log
        while True:
            if self._records is None or log is not self._source:
                self._records, self._source = None, log
                self._end = self.end()
                if self.position >= self._end:
                    self._check_damage()
                    return []
                self._records = log.records(self.position, self._end, self._isolation)
                if self._deserializers is not None:
                    self._records = map(partial(self._deserializers.record, self.name.topic), self._records)
            records: list[Any] = []
            # After Ctrl-C, the iterator may have ended, or may be past records that no call has returned.
            iterator, self._records = self._records, None
            try:
                records.extend(islice(iterator, limit))
            except StorageError:
                if not records:
                    raise
                self._advance(records)
                return records
            self._advance(records)
            if len(records) < limit:  # the rest up to the end has no visible records, only markers for instance
                self.position = max(self.position, self._end)
            else:
                self._records = iterator
            if records:
                return records

    def _check_damage(self) -> None:
        """Raise the error of the damage if the log is damaged at its end and the position is the log end."""
        view = self._log.view()
        if view.damage is not None and self.position == view.offsets.log_end:
            raise view.damage.with_traceback(None)

    def _advance(self, records: list[Any]) -> None:
        if records:
            self.position, self.leader_epoch = records[-1].offset + 1, records[-1].leader_epoch

    def offset_for_timestamp(self, timestamp_ms: int) -> int | None:
        """Return the offset of the first record with this timestamp or a later one; None if there is none."""
        return self._log.offset_for_timestamp(timestamp_ms, self._isolation)
