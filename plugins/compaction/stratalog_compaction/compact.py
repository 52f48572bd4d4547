"""Compacted topics. This version plans no rewriting: it removes what lies below the log start, and keeps the rest.

Source: apache/kafka UnifiedLog.deleteOldSegments, which does the same for ``cleanup.policy=compact`` outside the cleaner.
"""

from __future__ import annotations

from collections.abc import Sequence

from stratalog.spi import Action, CleanupPolicy, LogSummary, TopicConfig
from stratalog_compaction.delete import below_log_start, plan_prefix


class CompactPolicy(CleanupPolicy):
    """Kafka's ``cleanup.policy=compact``, without the cleaner."""

    def plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
        """The prefix below the log start; everything else is kept."""
        del config, now_ms
        return plan_prefix(log, (below_log_start(log),))
