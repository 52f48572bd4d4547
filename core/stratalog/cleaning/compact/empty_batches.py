"""Which batches stay though none of their records does.

Source: apache/kafka Cleaner.cleanInto (discardBatchRecords, lastRecordsOfActiveProducers), MemoryRecords.RecordFilter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from stratalog.model.batches import CONTROL_BIT, NO_PRODUCER, BatchTable

_NO_PRODUCER_BYTES: Final = NO_PRODUCER.to_bytes(8, "little", signed=True)


def stay_empty(
    table: BatchTable, last_records: Mapping[int, tuple[int, int]], *, ends_round: bool
) -> list[bool] | None:
    """Those that do: the last one of each producer that is known, and of the round; None if no batch of the table does.

    Args:
        table: of magic 2.
        last_records: the last data offset, -1 if there is none, and the epoch of each producer that is known.
        ends_round: whether the round ends with the table.
    """
    ids = table.producer_id
    if ids.tobytes() == _NO_PRODUCER_BYTES * len(ids):
        return [False] * (len(table) - 1) + [True] if ends_round else None
    stay = [
        batch_id != NO_PRODUCER and is_last(last_records.get(batch_id), last, epoch, attributes)
        for batch_id, last, epoch, attributes in zip(
            ids, table.last_offset, table.producer_epoch, table.attributes, strict=True
        )
    ]
    stay[-1] = stay[-1] or ends_round
    return stay


def is_last(known: tuple[int, int] | None, last_offset: int, epoch: int, attributes: int) -> bool:
    """Whether a batch is the last one of its producer, of whom this is known."""
    if known is None:
        return False
    last_data_offset, last_epoch = known
    if last_data_offset >= 0:
        return last_offset == last_data_offset
    return bool(attributes & CONTROL_BIT) and epoch == last_epoch
