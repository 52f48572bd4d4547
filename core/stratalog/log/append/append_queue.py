"""Group commit: durable appends that come together are written together, with one call to the disk.

Each puts its batch at the end of a row, and the first one there writes for all who come while it does. So a thread waits
once, until its batch is durable, and for no lock before: 64 threads that take the interpreter's lock and the log's in turn
spend more time on that than on their work. Who syncs writes first what is still in the row, so that nothing is left there.

The outcome is that of single appends: the same segments, and for each its own offsets or its own error.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Final, cast

from stratalog.errors import StorageError
from stratalog.log.append.commit import AppendResult, write_batch, write_table
from stratalog.log.prepare.prepare_records import Prepared
from stratalog.log.state.log_state import LogState
from stratalog.log.state.sync_turns import NOT_WRITTEN, REFUSED, Waiter
from stratalog.model.offsets import MAX_OFFSET
from stratalog.spi.formats import PlainBatch, RecordFormat

_TOGETHER_BYTES: Final = 1 << 20  # of one write at most: the batches are copied for it


class InRow(Waiter):
    """A batch to be written, and who waits until it is durable. ``end`` tells what became of it."""

    __slots__ = ("batch", "error", "format", "result")

    def __init__(self, found: RecordFormat, batch: PlainBatch) -> None:
        super().__init__(NOT_WRITTEN)
        self.format, self.batch = found, batch
        self.result: AppendResult | None = None
        self.error: Exception | None = None

    def written(self, result: AppendResult) -> None:
        """Note that the batch stands in the log."""
        self.result, self.end = result, result.last_offset + 1

    def refused(self, error: Exception) -> None:
        """Note that it does not, and that there is nothing to wait for."""
        self.error, self.end = error, REFUSED


def write_row(state: LogState) -> None:
    """Write all that stands in the row, under the log's lock. The error of a batch is for the thread that waits for it."""
    while came := state.turns.called():
        try:
            _write(state, cast(list[InRow], came))
        except BaseException as error:  # Ctrl-C, say: nobody would write what was taken out of the row
            state.ended_early("an append", error)
            raise


def _write(state: LogState, came: Sequence[InRow]) -> None:
    if len(came) > 1 and _written_together(state, came):
        return
    for waiter in came:
        try:
            waiter.written(write_batch(state, waiter.format, waiter.batch))
        except Exception as error:  # noqa: BLE001 - it is for the thread that waits
            waiter.refused(error)


def _written_together(state: LogState, came: Sequence[InRow]) -> bool:
    """Write batches with one call, if each by itself would go to the active segment, too; else False, and nothing is done."""
    form, base, active = came[0].format, state.log_end, state.segments[-1]
    size = sum(len(waiter.batch.data) for waiter in came)
    counts = [waiter.batch.record_count for waiter in came]
    end, largest_ms = base + sum(counts), max(waiter.batch.largest_ms for waiter in came)
    if not state.takes_appends or state.remote is not None or not active.size_bytes or end > MAX_OFFSET:
        return False
    if size > _TOGETHER_BYTES or any(waiter.format is not form for waiter in came):
        return False
    now = state.parts.env.clock.now_ms()
    try:
        if state.appender.should_roll(size, end - 1, largest_ms):
            return False
        data = bytearray().join([waiter.batch.data for waiter in came])
        write_table(state, Prepared(form, data, form.scan(data, 0, size, check_crc=False)), base, None)
    except StorageError:  # nothing of it stays: each by itself learns whether there is room for it, or why not
        return False
    for waiter, first, count in zip(came, accumulate(counts, initial=base), counts, strict=False):
        waiter.written(AppendResult(first, first + count - 1, now))
    return True
