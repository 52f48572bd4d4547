"""Settings of one open log."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from stratalog.config.topic import TopicConfig
from stratalog.log.prepare.preparer import Preparer
from stratalog.log.read.tier_view import RemoteLog
from stratalog.segment.components import Components


@dataclass(frozen=True)
class LogSettings:
    """Settings of one open log: one value that is replaced as a whole.

    Attributes:
        config: settings of the topic.
        components: components that the settings name.
        remote: the tier part of the log; None without a tier.
    """

    config: TopicConfig
    components: Components
    remote: RemoteLog | None = None

    @cached_property
    def preparer(self) -> Preparer:
        """The ``Preparer`` for these settings, made at the first append."""
        return Preparer(self.config, self.components)
