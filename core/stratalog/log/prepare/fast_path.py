"""Fast path for plain batches, which a leader writes without changes.

Most appends are one plain batch: it has no codec, flags or producer, and no rule needs a check of each record. This
module keeps the settings that apply to plain batches; they are read once, until the settings change.
"""

from __future__ import annotations

from collections.abc import Sequence

from stratalog.config.topic import TopicConfig
from stratalog.log.prepare.prepare_records import (
    BATCH_BYTES_WANTED,
    COMPACT,
    NOT_COMPRESSED,
    RECORD_OVERHEAD_BYTES,
    is_create_time,
)
from stratalog.model.batches import Buffer
from stratalog.model.records import Record
from stratalog.segment.components import Components
from stratalog.spi.formats import PlainBatch


class PlainRules:
    """The rules of one topic for batches without codec, flags and producer. Immutable and thread-safe.

    Attributes:
        format: the record format of the topic's ``record.version``.

    Raises:
        CorruptBatchError: no such format is installed.
    """

    __slots__ = (
        "_after_ms",
        "_before_ms",
        "_limit_bytes",
        "_max_bytes",
        "_needs_keys",
        "_now_ms",
        "_takes_plain",
        "format",
    )

    def __init__(self, config: TopicConfig, parts: Components) -> None:
        self.format = parts.formats.of(config.record_version, "", 0)
        self._takes_plain = config.compression_type in NOT_COMPRESSED and is_create_time(config)
        self._limit_bytes = min(BATCH_BYTES_WANTED, config.max_message_bytes, config.segment_bytes)
        self._max_bytes, self._needs_keys = config.max_message_bytes, COMPACT in config.cleanup_policy
        self._before_ms, self._after_ms = config.message_timestamp_before_max_ms, config.message_timestamp_after_max_ms
        self._now_ms = parts.env.clock.now_ms

    def encoded(self, records: Sequence[Record]) -> PlainBatch | None:
        """Return the records encoded as one plain batch; None if ``prepare_records`` must encode or check them."""
        if not self._takes_plain:
            return None
        now = self._now_ms()
        batch = self.format.encode_plain(
            records, now, limit_bytes=self._limit_bytes, overhead_bytes=RECORD_OVERHEAD_BYTES
        )
        return batch if batch is not None and self._are_kept(batch, now) else None

    def taken(self, data: Buffer) -> PlainBatch | None:
        """Return a copy of ``data`` if it is one plain batch that the topic accepts unchanged; otherwise None."""
        if not self._takes_plain:
            return None
        batch = self.format.plain_batch(data)
        return batch if batch is not None and self._are_kept(batch, self._now_ms()) else None

    def _are_kept(self, batch: PlainBatch, now_ms: int) -> bool:
        """Return True if a batch keeps the rules. Otherwise the slow path reports the records that break them."""
        data, _, least_ms, largest_ms, has_null_key = batch
        return (
            len(data) <= self._max_bytes
            and now_ms - self._before_ms <= least_ms
            and largest_ms <= now_ms + self._after_ms
            and not (has_null_key and self._needs_keys)
        )
