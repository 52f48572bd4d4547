"""Group commit: concurrent durable appends are written together, with one call to the disk.

Each thread puts its batch at the end of a queue (the "row"). The first thread in the queue also writes the batches that
arrive while it writes. Therefore a thread waits only once, until its batch is durable, and waits for no lock before
that: 64 threads that acquire the interpreter's lock and the log's lock in turn spend more time on the locks than on
their work. A syncing thread first writes the batches that are still in the queue, so the queue is empty at each sync.

The result is the same as with single appends: the same segments, and for each append its own offsets or its own error.
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

_TOGETHER_BYTES: Final = 1 << 20  # limit of one write, because the batches are copied for it


class QueuedAppend(Waiter):
    """A batch to write, with the thread that waits until it is durable. ``end`` is the outcome."""

    __slots__ = ("batch", "error", "format", "result")

    def __init__(self, found: RecordFormat, batch: PlainBatch) -> None:
        super().__init__(NOT_WRITTEN)
        self.format, self.batch = found, batch
        self.result: AppendResult | None = None
        self.error: Exception | None = None

    def written(self, result: AppendResult) -> None:
        """Record that the batch was written to the log."""
        self.result, self.end = result, result.last_offset + 1

    def refused(self, error: Exception) -> None:
        """Fail this waiter with ``error``."""
        self.error, self.end = error, REFUSED


def write_row(state: LogState) -> None:
    """Write all queued batches, under the log's lock. The thread that waits for a batch gets the batch's error."""
    while came := state.durability.turns.called():
        try:
            _write(state, cast(list[QueuedAppend], came))
        except BaseException as error:  # such as Ctrl-C: no thread would write the batches taken from the queue
            state.health.ended_early("an append", error)
            raise


def _write(state: LogState, came: Sequence[QueuedAppend]) -> None:
    if len(came) > 1 and _written_together(state, came):
        return
    for waiter in came:
        try:
            waiter.written(write_batch(state, waiter.format, waiter.batch))
        except Exception as error:  # noqa: BLE001 - the waiting thread raises it
            waiter.refused(error)


def _written_together(state: LogState, came: Sequence[QueuedAppend]) -> bool:
    """Write batches with one call if each of them fits the active segment. Otherwise return False and write nothing."""
    form, base, active = came[0].format, state.log_end, state.writes.segments[-1]
    size = sum(len(waiter.batch.data) for waiter in came)
    counts = [waiter.batch.record_count for waiter in came]
    end, largest_ms = base + sum(counts), max(waiter.batch.largest_ms for waiter in came)
    if not state.takes_appends or state.settings.remote is not None or not active.size_bytes or end > MAX_OFFSET:
        return False
    if size > _TOGETHER_BYTES or any(waiter.format is not form for waiter in came):
        return False
    now = state.settings.components.env.clock.now_ms()
    try:
        if state.writes.appender.should_roll(size, end - 1, largest_ms):
            return False
        data = bytearray().join([waiter.batch.data for waiter in came])
        write_table(state, Prepared(form, data, form.scan(data, 0, size, check_crc=False)), base, None)
    except StorageError:  # nothing was written: a single write of each batch gives that batch its own result
        return False
    for waiter, first, count in zip(came, accumulate(counts, initial=base), counts, strict=False):
        waiter.written(AppendResult(first, first + count - 1, now))
    return True
