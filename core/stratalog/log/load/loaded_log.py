"""Request to load a log, and the state of the loaded log."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Self

from stratalog.epochs.epoch_cache import EpochCache
from stratalog.errors import CorruptBatchError
from stratalog.log.folder.directory_state import DirectoryState
from stratalog.model.names import TopicPartition
from stratalog.producers.state import ProducerState
from stratalog.segment.segment import Segment

PRODUCER_EXPIRATION_MS: Final = 86_400_000
"""Kafka's default of ``producer.id.expiration.ms``."""


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """Facts about a log that are known before its folder is opened, most of them from the directory's checkpoints.

    Attributes:
        clean: True if the last writer stopped cleanly.
        recovery_point: the first offset that is not known to be durable, from the checkpoint.
        log_start: the log start offset from the checkpoint; None if there is none.
        high_watermark: the high watermark from the checkpoint; None if there is none.
        writable: if True, files are repaired and created. If False, no file is changed.
        producer_expiration_ms: ``producer.id.expiration.ms``. Producers that were silent for that long are not restored
            from snapshots.
        is_replicated: True if other replicas may have led the log in later epochs (``watermark`` is external).
    """

    clean: bool
    recovery_point: int
    log_start: int | None
    high_watermark: int | None
    writable: bool
    producer_expiration_ms: int = PRODUCER_EXPIRATION_MS
    is_replicated: bool = False

    @classmethod
    def of(cls, state: DirectoryState, name: TopicPartition, *, writable: bool) -> Self:
        """Return the request to load a log with its offsets in the checkpoints of its directory.

        The high watermark is used only after a clean stop.
        """
        return cls(
            clean=state.clean,
            recovery_point=state.recovery_points.get(name, 0),
            log_start=state.log_starts.get(name),
            high_watermark=state.high_watermarks.get(name) if state.clean else None,
            writable=writable,
        )


@dataclass(slots=True)
class LoadedLog:
    """State of a loaded log. The segments are open, and the last one is the active one.

    ``segments`` is empty if a reader loads a folder without segments. ``log_start`` is the checkpoint's value; without
    a checkpoint, it is 0 and ``has_start`` is False. Without a tier, the log starts at its first segment or later.
    ``stores_stale_epochs`` is True if the file of leader epochs has later epochs than ``epochs``, because the disk was
    full. ``deleted_files`` has the names of the ``.deleted`` files of segments that recovery dropped or split.
    ``recovered_segments`` is the number of segments that recovery checked, and ``truncated_bytes`` is the number of
    bytes that it removed from the end of the log. ``damage`` is the error at which reads of the log end; None if there
    is none. ``producer_expiration_ms`` is copied from the request. ``snapshot_offset`` is the offset of the newest good
    producer snapshot; 0 or -1 if there is none.
    """

    segments: list[Segment]
    producers: ProducerState
    epochs: EpochCache
    log_start: int
    log_end: int
    recovery_point: int
    has_start: bool = False
    stores_stale_epochs: bool = False
    recovered_segments: int = 0
    truncated_bytes: int = 0
    damage: CorruptBatchError | None = None
    deleted_files: list[str] = field(default_factory=list)
    snapshot_offset: int = -1
    producer_expiration_ms: int = PRODUCER_EXPIRATION_MS
