"""State of a log that is open for writing: the owners of its parts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from stratalog.log.read.view import LogView, PublishedView
from stratalog.log.state.bounds import limit_bounds
from stratalog.log.state.cleaning_state import CleaningState
from stratalog.log.state.durability_state import DurabilityState
from stratalog.log.state.health import Health
from stratalog.log.state.log_settings import LogSettings
from stratalog.log.state.role import Role
from stratalog.log.state.tier_link import TierLink
from stratalog.log.state.write_state import WriteState
from stratalog.model.events import Event
from stratalog.model.names import TopicPartition
from stratalog.spi.segment_store import LogFiles

_new_tuple: Final = tuple.__new__  # creates a named tuple from all its fields, with one call fewer than its class


@dataclass(slots=True)
class LogState:
    """State of one open log, in parts. Each part has one owner, and only the owner's methods change its fields.

    Fields are changed under ``lock``, unless the owner's docstring states another rule. Threads that change the log
    also read the fields under ``lock``. Without the lock, read single fields only; the value may be stale. Readers of
    records take no lock: they load ``published``. ``LockRank`` states the order of the locks.
    """

    name: TopicPartition
    files: LogFiles
    notify: Callable[[Event], None]
    store_bounds: Callable[[], None] | None  # writes the directory's checkpoints
    lock: threading.RLock
    settings: LogSettings  # replaced by ``configure`` only
    health: Health
    role: Role
    writes: WriteState
    durability: DurabilityState
    tier: TierLink
    published: PublishedView
    cleaning: CleaningState = field(default_factory=CleaningState)

    @property
    def log_end(self) -> int:
        """Offset of the next record."""
        return self.writes.segments[-1].end_offset

    @property
    def view(self) -> LogView:
        """The view that readers see. Needs no lock."""
        return self.published.view()

    @property
    def takes_appends(self) -> bool:
        """True if the log accepts a leader's appends: it is open, in service, not damaged, and leads."""
        return not self.health.closed and self.health.is_good and self.role.is_leader

    def configure(self, settings: LogSettings) -> None:
        """Apply new settings of the topic. The caller holds the lock."""
        self.settings = settings
        self.writes.appender.configure(settings.config)
        self.publish()

    def delete_later(self, names: Iterable[str]) -> None:
        """Delete these ``.deleted`` files ``file.delete.delay.ms`` from now. The caller holds the lock."""
        clock, delay_ms = self.settings.components.env.clock, self.settings.config.file_delete_delay_ms
        self.writes.pending_deletes.add(names, clock.monotonic_ns() + delay_ms * 1_000_000)

    def publish(self) -> None:
        """Make the current state visible to readers. The caller holds the lock."""
        writes, role, remote = self.writes, self.role, self.settings.remote
        segments, epochs, recovery_point = writes.segments, writes.epochs, self.durability.recovery_point
        tier_view = None if remote is None else self.tier.select_own_part(remote, epochs)
        high_watermark = role.high_watermark(segments[-1].end_offset, recovery_point)
        offsets = limit_bounds(segments, writes.producers, tier_view, writes.log_start, recovery_point, high_watermark)
        damage = self.health.damage
        components, epoch = self.settings.components, role.leader_epoch
        fields = (self.name, segments, offsets, epochs, components, tier_view, damage, epoch, role.is_leader)
        self.published.replace(_new_tuple(LogView, fields))
