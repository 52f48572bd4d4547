"""Choice of the batches that stay although all of their records are dropped.

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
    """Return which batches stay without records: each known producer's last one, and the round's last one; or None.

    Args:
        table: a table of magic 2.
        last_records: the last data offset (-1 if there is none) and the epoch of each known producer.
        ends_round: True if the round ends with the table.

    Returns:
        One bool a row; None if no batch of the table stays without records.
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
    """Return True if a batch is the last one of its producer, given the producer's known state."""
    if known is None:
        return False
    last_data_offset, last_epoch = known
    if last_data_offset >= 0:
        return last_offset == last_data_offset
    return bool(attributes & CONTROL_BIT) and epoch == last_epoch
