"""State of the compaction of one log."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field


@dataclass(slots=True)
class CleaningState:
    """What is known of the compaction of one log. Changed under the log's lock.

    ``dirty_start`` is the first offset that was not compacted yet, as the cleaner's checkpoint says, None if there is
    none. ``changes`` counts what makes a round under way void. ``uncleanable`` says why the log is left alone until it is
    opened again, "" if it is not. ``busy`` is held over a round, and over an offload: what is being sent to a tier must
    not become something else meanwhile. It comes before the log's lock. ``tier_busy`` is the same for what rewrites
    committed segments; whoever takes both takes it first. ``tier_uncleanable`` is as ``uncleanable``, of the tier's part;
    ``tier_doubt`` is what was damaged when that was read last: it may be so on the way only.
    """

    dirty_start: int | None = None
    changes: int = 0
    uncleanable: str = ""
    busy: threading.Lock = field(default_factory=threading.Lock)
    tier_uncleanable: str = ""
    tier_doubt: str = ""
    tier_busy: threading.Lock = field(default_factory=threading.Lock)

    def void(self, end: int | None = None) -> None:
        """Make a round of compaction that is in progress come to nothing. The caller holds the log's lock.

        For every change of the log below its end. A truncation passes the new ``end`` (offset): nothing above it is clean.

        Source: apache/kafka LogManager.truncateTo (abortAndPauseCleaning, maybeTruncateCleanerCheckpoint...).
        """
        self.changes += 1
        if end is not None and self.dirty_start is not None:
            self.dirty_start = min(self.dirty_start, end)
