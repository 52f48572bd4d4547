"""Verdicts of filters on the records of each batch, and the choice of batches that stay even if they lose all records.

Source: apache/kafka Cleaner.cleanInto (discardBatchRecords, lastRecordsOfActiveProducers), MemoryRecords.RecordFilter.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from stratalog.errors import PluginError
from stratalog.model.batches import CONTROL_BIT, NO_PRODUCER, BatchTable, Buffer
from stratalog.model.records import RecordColumns
from stratalog.spi.cleanup import RecordFilter
from stratalog.spi.formats import Verdict

KEEP: Final = bytes((Verdict.KEEP,))
DROP: Final = bytes((Verdict.DROP,))
AT_HORIZON: Final = bytes((Verdict.DROP_AT_HORIZON,))
_KNOWN: Final = bytes(Verdict)
# Of several verdicts on the same record, the last one in this order is valid.
_WEIGHTS: Final = bytes((Verdict.KEEP, Verdict.DROP_AT_HORIZON, Verdict.DROP))
_TO_WEIGHT: Final = bytes.maketrans(_WEIGHTS, bytes(range(len(_WEIGHTS))))
_TO_VERDICT: Final = bytes.maketrans(bytes(range(len(_WEIGHTS))), _WEIGHTS)
AT_HORIZON_IS_OVER: Final = bytes.maketrans(AT_HORIZON, DROP)
AT_HORIZON_IS_KEPT: Final = bytes.maketrans(AT_HORIZON, KEEP)
_NO_PRODUCER_BYTES: Final = NO_PRODUCER.to_bytes(8, "little", signed=True)


def judge_records(filters: Sequence[RecordFilter], records: RecordColumns, end: int) -> bytearray:
    """Return one verdict (a byte) for each record: a record is dropped if at least one filter drops it.

    Filters do not judge records from offset ``end`` on: these records stay. As in Kafka, tombstones among these records
    get ``Verdict.DROP_AT_HORIZON``, and their batch gets a delete horizon in this compaction
    round.

    Raises:
        PluginError: a filter returns an unknown verdict, or not exactly one for each record.
    """
    judged_count = bisect_left(records.offset, end)
    judged_records = records if judged_count == records.count else records.take(0, judged_count)
    total: bytearray | None = None
    for record_filter in filters if judged_count else ():
        verdicts = bytearray(judged_count)
        record_filter.judge(judged_records, verdicts)
        if len(verdicts) != judged_count or verdicts.translate(None, _KNOWN):
            raise PluginError(f"{type(record_filter).__name__} must return one valid verdict for each record")
        total = verdicts if total is None else _merge_verdicts(total, verdicts)
    if judged_count == records.count:
        return total or bytearray()
    sizes = records.value_size[judged_count:] if len(records.value_size) else memoryview(b"")
    unjudged = b"".join(AT_HORIZON if size < 0 else KEEP for size in sizes) or KEEP * (records.count - judged_count)
    return (total or bytearray()) + unjudged


def _merge_verdicts(first: bytearray, second: bytearray) -> bytearray:
    weights = map(max, first.translate(_TO_WEIGHT), second.translate(_TO_WEIGHT))
    return bytearray(weights).translate(_TO_VERDICT)


def split_by_batch(table: BatchTable, judgements: Iterable[Buffer]) -> Iterator[memoryview]:
    """Yield the verdicts of each batch of a table, one byte for each record.

    ``judgements`` are the same verdicts in the same order, in pieces of one or more whole batches. A batch of V0 or V1
    with an unknown number of records must have a piece of its own.
    """
    pieces, counts = iter(judgements), table.record_count
    remaining = memoryview(b"")
    if min(counts, default=0) > 0:
        remaining = memoryview(next(pieces))
        if sum(counts) == len(remaining):  # nearly always true if the batches are not compressed
            ends = list(accumulate(counts))
            yield from map(remaining.__getitem__, map(slice, [0, *ends[:-1]], ends))
            return
    for count in counts:
        if not count:
            yield remaining[:0]
            continue
        while not remaining:  # batches without records may have their own empty piece
            remaining = memoryview(next(pieces))
        if count < 0:
            count = len(remaining)  # noqa: PLW2901 - only the content of a wrapper says how many records it has
        yield remaining[:count]
        remaining = remaining[count:]


class OldVerdicts(NamedTuple):
    """Verdicts on a table of V0 or V1.

    Attributes:
        verdicts: verdicts on each batch, one byte for each record.
        have_tombstones: True if tombstones in the table stay for now.
        is_last_kept: True if the last record stays only because the compaction round ends there.
    """

    verdicts: list[Buffer]
    have_tombstones: bool
    is_last_kept: bool


def old_format_verdicts(verdicts: Sequence[Buffer], *, is_over: bool, ends_round: bool) -> OldVerdicts:
    """Return the verdicts for a table of V0 or V1. These formats have no delete horizon and no empty batches.

    If ``is_over`` is True, the time of the tombstones has expired, and they are dropped. If it is False, they stay. If
    ``ends_round`` and all records of the last batch are dropped, its last record stays in place of an empty batch.
    """
    all_verdicts = [bytes(words) for words in verdicts]
    have_tombstones = not is_over and any(AT_HORIZON in words for words in all_verdicts)
    words = [
        batch_verdicts.translate(AT_HORIZON_IS_OVER if is_over else AT_HORIZON_IS_KEPT)
        for batch_verdicts in all_verdicts
    ]
    is_last_kept = bool(words) and ends_round and words[-1].count(DROP) == len(words[-1])
    if is_last_kept:
        words[-1] = words[-1][:-1] + KEEP
    return OldVerdicts(list[Buffer](words), have_tombstones, is_last_kept)


# --- batches without records -----------------------------------------------------------------------------------------


def stay_empty(
    table: BatchTable, last_records: Mapping[int, tuple[int, int]], *, ends_round: bool
) -> list[bool] | None:
    """Return True for each batch that must stay even if it loses all records.

    The last batch of each known producer must stay, because recovery rebuilds the producer's state from that batch. The
    last batch of the compaction round must stay, too.

    Args:
        table: a table of magic 2.
        last_records: the last data offset (-1 if there is none) and the epoch of each known producer.
        ends_round: True if the compaction round ends with the table.

    Returns:
        One bool for each batch; None instead if the table has no producer ids and does not end the round.
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


def is_last(last_record: tuple[int, int] | None, last_offset: int, epoch: int, attributes: int) -> bool:
    """Return True if a batch is the last one of its producer.

    ``last_record`` is the producer's last data offset (-1 if it has only markers) and epoch; None if the producer is
    unknown.
    """
    if last_record is None:
        return False
    last_data_offset, last_epoch = last_record
    if last_data_offset >= 0:
        return last_offset == last_data_offset
    return bool(attributes & CONTROL_BIT) and epoch == last_epoch
