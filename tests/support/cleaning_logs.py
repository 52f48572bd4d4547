"""Random logs for compaction, made from a seed, and compaction rounds over them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from log_bed import LogBed
from stored_batches import batches_in, records_in
from stratalog.cleaning.compact.compaction_round import CleanerLimits, CompactionResult, compact
from stratalog.cleaning.plan.compaction_plan import CompactionPlan, plan_parts
from stratalog.config.topic import TopicConfig
from stratalog.env.rate_limit import Throttle
from stratalog.log.log import Log
from stratalog.model.records import Record
from stratalog.spi import CleanupPolicy

LIMITS = CleanerLimits(memory_bytes=1 << 20, load_factor=0.9, read_bytes=1 << 18)
DAY_MS = 86_400_000


@dataclass
class Script:
    """Appends random batches to a log: repeated keys, tombstones, and optionally compression and transactions.

    Attributes:
        log: log that receives the batches.
        bed: bed of the log.
        chance: source of all random decisions.
        magic: magic of the batches.
        codecs: names of codecs to choose from; None means no compression.
        transactions: True if idempotent producers also write, some of them in transactions that commit or abort.
        keys: number of different keys.
        sequences: next sequence of each producer.
        open: ids of the producers with an open transaction.
    """

    log: Log
    bed: LogBed
    chance: random.Random
    magic: int = 2
    codecs: tuple[str | None, ...] = (None,)
    transactions: bool = False
    keys: int = 30
    sequences: dict[int, int] = field(default_factory=dict)
    open: set[int] = field(default_factory=set)

    def append(self, batches: int) -> None:
        """Append this number of batches, with random rolls. The clock advances before each batch."""
        for _ in range(batches):
            self.bed.clock.advance_ms(self.chance.randrange(500))
            if self.transactions and self.chance.random() < 0.7:
                self._append_of_producer()
            else:
                self._append_records((-1, -1, -1), transactional=False)
            if self.chance.random() < 0.05:
                self.log.roll()

    def end_all(self) -> None:
        """End the open transactions."""
        for producer_id in sorted(self.open):
            self._end(producer_id)

    def _append_of_producer(self) -> None:
        producer_id = self.chance.randrange(1, 7)
        if producer_id in self.open and self.chance.random() < 0.4:
            self._end(producer_id)
            return
        transactional = producer_id > 2
        if transactional:
            self.open.add(producer_id)
        sequence = self.sequences.get(producer_id, 0)
        count = self._append_records((producer_id, 0, sequence), transactional=transactional)
        self.sequences[producer_id] = sequence + count

    def _end(self, producer_id: int) -> None:
        self.open.discard(producer_id)
        self.log.end_transaction(producer_id, 0, commit=self.chance.random() < 0.5, coordinator_epoch=0)

    def _append_records(self, producer: tuple[int, int, int], *, transactional: bool) -> int:
        records = [self._record() for _ in range(self.chance.choice([1, 1, 2, 5, 9]))]
        codec = self.chance.choice(self.codecs)
        self.log.append_as_leader(
            self.bed.batch(0, records, magic=self.magic, codec=codec, producer=producer, transactional=transactional)
        )
        return len(records)

    def _record(self) -> Record:
        chance, now_ms = self.chance, self.bed.clock.now_ms()
        key = None if chance.random() < 0.03 else b"key-%d" % int(chance.random() ** 2 * self.keys)
        value = None if chance.random() < 0.15 else bytes(chance.choices(b"abcdefgh", k=chance.choice([0, 10, 60])))
        headers = ((("h", b"x"),) if chance.random() < 0.1 else ()) if self.magic == 2 else ()
        return Record(key=key, value=value, timestamp_ms=now_ms + chance.randrange(-50, 50), headers=headers)


def topic(**settings: object) -> TopicConfig:
    """Return settings for compaction: small segments, and a round runs if at least one record is dirty."""
    base = {
        "cleanup.policy": "compact",
        "segment.bytes": 4000,
        "index.interval.bytes": 300,
        "min.cleanable.dirty.ratio": 0,
        "delete.retention.ms": 10_000,
        "file.delete.delay.ms": 0,
    }
    return TopicConfig.from_mapping({**base, **{name.replace("_", "."): value for name, value in settings.items()}}, "")


def uncompacted(config: TopicConfig) -> TopicConfig:
    """Return the settings without compaction and retention. A log with these settings accepts records without keys."""
    return replace(config, cleanup_policy=("delete",), retention_ms=-1)


def local_plan(log: Log, policies: Mapping[str, CleanupPolicy], now_ms: int = 0) -> CompactionPlan:
    """Return the policies' compaction plan for a log without a tier."""
    (plan,) = plan_parts(log, policies, None, now_ms=now_ms)
    return plan


def clean(bed: LogBed, log: Log, limits: CleanerLimits = LIMITS, **more: CleanupPolicy) -> CompactionResult | None:
    """Run one compaction round. Return its result, or None if there is nothing to clean."""
    policies = {"compact": bed.host.policy("compact"), **more}
    now_ms = bed.clock.now_ms()
    plan = local_plan(log, policies, now_ms)
    if plan.rewrite is None:
        return None
    return compact(plan, policies, limits, Throttle(bed.clock, 1e15), lambda: None, now_ms)


def described(bed: LogBed, data: bytes) -> list[object]:
    """Return the header and the records of each batch in ``data``.

    Positions are 0. Size and CRC are 0 for compressed batches, because compressors may produce different bytes.
    """
    return [
        (replace(batch, position=0, **({"size_bytes": 0, "crc": 0} if batch.codec_id else {})), records)
        for batch, records in batches_in(data, bed.components)
    ]


def contents(bed: LogBed, data: bytes) -> list[tuple[object, ...]]:
    """Return offset, timestamp, key and value of each record in ``data``, for any record format."""
    return [
        (record.offset, record.timestamp_ms, record.key, record.value) for record in records_in(data, bed.components)
    ]
