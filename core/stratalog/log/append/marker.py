"""Append of the marker that ends a transaction, for a transaction coordinator.

Source: apache/kafka MemoryRecords.withEndTransactionMarker, UnifiedLog.appendAsLeader with the origin COORDINATOR.
"""

from __future__ import annotations

from typing import Final

from stratalog.errors import ConfigError
from stratalog.log.append.append import append
from stratalog.log.append.commit import AppendResult
from stratalog.log.state.log_state import LogState
from stratalog.model.messages.control import EndMarker
from stratalog.model.offsets import AppendOrigin, Durability
from stratalog.model.prepared import PreparedBatches
from stratalog.segment.control_batches import CONTROL_MAGIC, control_batch

_BITS: Final = {"producer_id": 63, "producer_epoch": 15, "coordinator_epoch": 31}  # of Kafka's fields, without the sign


def append_marker(
    state: LogState, producer_id: int, producer_epoch: int, marker: EndMarker, durability: Durability
) -> AppendResult:
    """Append an end marker, in magic 2 for any topic, because older magics have no markers. Errors as ``append``.

    Raises:
        ConfigError: a number is negative, or too large for its field.
    """
    for (name, bits), value in zip(_BITS.items(), (producer_id, producer_epoch, marker.coordinator_epoch), strict=True):
        if not 0 <= value < 1 << bits:
            raise ConfigError(f"{name}={value} of an end marker is not in [0, {(1 << bits) - 1}]")
    form = state.settings.components.formats.of(CONTROL_MAGIC, "append", 0)
    data = control_batch(
        form,
        marker,
        timestamp_ms=state.settings.components.env.clock.now_ms(),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
    )
    table = form.scan(data, 0, len(data), check_crc=False)
    return append(state, PreparedBatches(table, data), durability, AppendOrigin.COORDINATOR)
