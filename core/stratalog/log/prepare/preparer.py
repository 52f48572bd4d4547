"""Preparation of a leader's appends: checks records, and encodes them as batches that can be written. Needs no lock."""

from __future__ import annotations

from collections.abc import Sequence

from stratalog.config.topic import NO_CODEC, TopicConfig
from stratalog.errors import InvalidRecordError
from stratalog.log.prepare.prepare_batches import prepare_batches
from stratalog.log.prepare.prepare_records import (
    COMPACT,
    RECORD_OVERHEAD_BYTES,
    batch_limit_bytes,
    is_create_time,
    prepare_records,
)
from stratalog.model.batches import Buffer
from stratalog.model.offsets import AppendOrigin
from stratalog.model.prepared import PreparedBatches, Rules
from stratalog.model.records import Record
from stratalog.segment.components import Components


class Preparer:
    """Maker of prepared batches with the settings of one topic. Immutable and thread-safe.

    The record format prepares nearly all appends in one call. If the format declines an append, the records are checked
    one by one.

    Attributes:
        format: the record format of the topic's ``record.version``.
        now_ms: returns the time of the clock (ms since 1970).

    Raises:
        UnknownComponentError, PluginError: the format of the topic's ``record.version`` is not installed, or cannot be
            opened.
    """

    __slots__ = ("_components", "_config", "_is_direct", "_rules", "format", "now_ms")

    def __init__(self, config: TopicConfig, components: Components) -> None:
        self._config, self._components = config, components
        self.format = components.formats.for_version(config.record_version)
        self._is_direct = config.compression_type in NO_CODEC  # then uncompressed batches stay uncompressed
        self.now_ms = components.env.clock.now_ms
        self._rules = Rules(
            max_batch_bytes=config.max_message_bytes,
            before_ms=config.message_timestamp_before_max_ms,
            after_ms=config.message_timestamp_after_max_ms,
            needs_keys=COMPACT in config.cleanup_policy,
            keeps_times=is_create_time(config),
            limit_bytes=batch_limit_bytes(config),
            overhead_bytes=RECORD_OVERHEAD_BYTES,
        )

    def records(self, records: Sequence[Record]) -> PreparedBatches:
        """Return records as encoded batches; raise the same errors as ``prepare_records``."""
        if self._is_direct:
            batches = self.format.prepare_records(records, self._rules, self.now_ms())
            if batches is not None:
                return batches
        return PreparedBatches.joined(prepare_records(records, self._config, self._components))

    def batches(self, data: Buffer, origin: AppendOrigin) -> PreparedBatches:
        """Return encoded batches after a check. Batches that do not fit the topic are encoded again.

        Raises:
            InvalidRecordError: the data contains no complete batch.
            The errors of ``prepare_batches``.
        """
        if self._is_direct:
            batches = self.format.prepare_batches(data, self._rules, self.now_ms())
            if batches is not None:
                return batches
        pieces = prepare_batches(data, self._config, self._components, origin=origin)
        if not pieces:
            raise InvalidRecordError("the data contains no complete batch")
        return PreparedBatches.joined(pieces)
