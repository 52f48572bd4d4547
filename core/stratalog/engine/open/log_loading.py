"""Loading the logs of a directory, several at a time.

Source: apache/kafka LogManager.loadLogs, ``num.recovery.threads.per.data.dir``.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Final

from stratalog.config.topic import TopicConfig
from stratalog.env import Clock
from stratalog.env.threads import outcomes
from stratalog.errors import StorageError
from stratalog.log.load.loaded_log import LoadedLog, LoadRequest
from stratalog.log.load.log_loader import RecoveryProgress, load
from stratalog.model.names import TopicId, TopicPartition
from stratalog.segment.components import Components
from stratalog.spi.segment_store import LogFiles
from stratalog.tier.tier_log import TierLog

_WARM_UP: Final = 16
_SAMPLE: Final = 64
_MANY: Final = 512  # fewer are there in less than a second, either way

LogProgress = Callable[[TopicPartition, int, int], None]
"""Told while logs are recovered, on the threads that do it: which, how many bytes are looked at, and of how many."""


@dataclass(frozen=True, slots=True)
class Loading:
    """A log that is about to be loaded, with all that it needs; ``refusal`` is why it can only be read."""

    name: TopicPartition
    files: LogFiles
    parts: Components
    config: TopicConfig
    topic_id: TopicId
    remote: TierLog | None
    request: LoadRequest
    refusal: StorageError | None = None

    def run(self, progress: LogProgress | None = None) -> LoadedLog:
        """Load it; errors as ``load``."""
        return load(self.files, self.parts, self.config, self.request, self._progress(progress))

    def _progress(self, told: LogProgress | None) -> RecoveryProgress | None:
        if told is None:
            return None
        return lambda done_bytes, total_bytes: told(self.name, done_bytes, total_bytes)


def load_all(
    loadings: Sequence[Loading], threads: int, progress: LogProgress | None, clock: Clock
) -> Generator[tuple[Loading, LoadedLog | StorageError], None, None]:
    """Load logs; each with what came of it, in the order in which they are given, whoever was done first.

    Args:
        loadings: one a log.
        threads: how many at a time at the most.
        progress: told how far each recovery is.
        clock: of the engine.

    Raises:
        Exception: one that is no StorageError, of the first log that met it; nothing stays open then.
    """
    found = _loaded(loadings, threads, progress, clock)
    strange = [result for result in found if isinstance(result, BaseException) and not isinstance(result, StorageError)]
    taken = 0
    try:
        if strange:
            raise strange[0]
        for loading, result in zip(loadings, found, strict=True):
            taken += 1
            if isinstance(result, LoadedLog | StorageError):
                yield loading, result
    finally:
        for result in found[taken:]:
            if isinstance(result, LoadedLog):
                for segment in result.segments:
                    segment.close()


def _loaded(
    loadings: Sequence[Loading], threads: int, progress: LogProgress | None, clock: Clock
) -> list[LoadedLog | Exception]:
    """What came of each log. Of many that were closed cleanly some are loaded to see whether threads help.

    Such a log is a few short calls of the system with Python between them. If the answers are at hand, threads do nothing
    but hand the interpreter to each other, which takes twice the time; if the disk is cold or far, they wait together.
    """

    def load(some: Sequence[Loading], at_a_time: int) -> list[LoadedLog | Exception]:
        return outcomes(some, lambda loading: loading.run(progress), at_a_time, "stratalog-recovery")

    if threads == 1 or len(loadings) < _MANY or not all(loading.request.clean for loading in loadings):
        return load(loadings, threads)
    found, took = load(loadings[:_WARM_UP], threads), dict[int, int]()  # the first ones take what is done once
    for tried in (threads, 1):
        began_ns = clock.monotonic_ns()
        found += load(loadings[len(found) : len(found) + _SAMPLE], tried)
        took[tried] = clock.monotonic_ns() - began_ns
    return found + load(loadings[len(found) :], 1 if took[1] < took[threads] else threads)
