"""Role of a log: leader of an epoch, or follower of that epoch's leader."""

from __future__ import annotations

from typing import Final

from stratalog.errors import ConfigError, NotLeaderOrFollowerError, StaleLeaderEpochError
from stratalog.model.names import TopicPartition
from stratalog.model.offsets import MAX_EPOCH, Watermark

_WRITTEN: Final = Watermark.WRITTEN  # looked up at each append


class Role:
    """Role of one log, and its high watermark. The methods are called under the log's lock. Epochs never decrease.

    Attributes:
        name: topic and partition.
        watermark: the rule that moves a leader's high watermark.
        given_watermark: high watermark that the caller set, or that the leader sent.
        leader_epoch: the epoch that the log leads or follows.
        is_leader: True if the log accepts a leader's appends.
    """

    __slots__ = ("given_watermark", "is_leader", "leader_epoch", "name", "watermark")

    def __init__(
        self, name: TopicPartition, watermark: Watermark, given_watermark: int, leader_epoch: int, *, is_leader: bool
    ) -> None:
        self.name, self.watermark, self.given_watermark = name, watermark, given_watermark
        self.leader_epoch, self.is_leader = leader_epoch, is_leader

    @property
    def is_replicated(self) -> bool:
        """True if ``watermark`` is external: other replicas may exist, and the tier may be ahead of this log."""
        return self.watermark is Watermark.EXTERNAL

    def check_leads(self) -> None:
        """Raise NotLeaderOrFollowerError unless the log leads."""
        if not self.is_leader:
            raise NotLeaderOrFollowerError(f"log {self.name} follows the leader of epoch {self.leader_epoch}")

    def check_follows(self) -> None:
        """Raise NotLeaderOrFollowerError unless the log follows."""
        if self.is_leader:
            raise NotLeaderOrFollowerError(f"log {self.name} is the leader of epoch {self.leader_epoch}")

    def check_epoch(self, epoch: int) -> None:
        """Raise StaleLeaderEpochError if ``epoch`` is below the log's epoch, ConfigError if it is above 2147483647."""
        if epoch > MAX_EPOCH:
            raise ConfigError(f"the leader epoch must fit 32 bits: {epoch}")
        if epoch < self.leader_epoch:
            raise StaleLeaderEpochError(f"log {self.name} is in leader epoch {self.leader_epoch}, not in {epoch}")

    def lead(self, epoch: int) -> None:
        """Lead in ``epoch``, which the caller has checked."""
        self.leader_epoch, self.is_leader = epoch, True

    def follow(self, epoch: int, high_watermark: int) -> None:
        """Follow the leader of ``epoch``, which the caller has checked.

        ``high_watermark`` is the current high watermark. A former leader keeps it until the new leader sends one.
        """
        if self.is_leader:
            self.given_watermark = high_watermark
        self.leader_epoch, self.is_leader = epoch, False

    def step_down(self) -> None:
        """Refuse a leader's appends until ``lead`` is called."""
        self.is_leader = False

    def set_watermark(self, offset: int) -> None:
        """Store the high watermark that the caller set or the leader sent."""
        self.given_watermark = offset

    def high_watermark(self, log_end: int, recovery_point: int) -> int:
        """Return the high watermark by the rule of the role. A view limits it to the log's bounds."""
        if not self.is_leader:
            return self.given_watermark
        if self.watermark is _WRITTEN:
            return log_end
        return recovery_point if self.watermark is Watermark.DURABLE else self.given_watermark
