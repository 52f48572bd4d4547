"""What is known of a log before its folder is opened, and its state afterwards."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from stratalog.epochs.epoch_cache import EpochCache
from stratalog.errors import CorruptBatchError
from stratalog.producers.state import ProducerState
from stratalog.segment.segment import Segment

PRODUCER_EXPIRATION_MS: Final = 86_400_000
"""Kafka's default of ``producer.id.expiration.ms``."""


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """What the log directory knows of a log before its folder is opened.

    ``clean``: the last writer stopped in order. ``log_start`` and ``high_watermark`` are checkpoints, None if there
    is none. ``writable``: repair and create; else nothing is touched. ``producer_expiration_ms`` is
    ``producer.id.expiration.ms``: producers that were silent for so long are not taken from snapshots.
    """

    clean: bool
    recovery_point: int
    log_start: int | None
    high_watermark: int | None
    writable: bool
    producer_expiration_ms: int = PRODUCER_EXPIRATION_MS


@dataclass(slots=True)
class LoadedLog:
    """A log's state as loaded; the segments are open, the last one is the active one.

    ``log_start`` is the checkpoint's, 0 if there is none (``has_start``): without a tier, the log starts at its first
    segment or later. A reader of a folder without segments has none. ``left``: the ``.deleted`` files of segments that
    recovery gave up. ``producer_expiration_ms`` is the request's. ``snapshot_offset`` is where the newest snapshot of
    producers stands, -1 if there is none.
    """

    segments: list[Segment]
    producers: ProducerState
    epochs: EpochCache
    log_start: int
    log_end: int
    recovery_point: int
    has_start: bool = False
    recovered_segments: int = 0
    truncated_bytes: int = 0
    damage: CorruptBatchError | None = None
    left: list[str] = field(default_factory=list)
    snapshot_offset: int = -1
    producer_expiration_ms: int = PRODUCER_EXPIRATION_MS
