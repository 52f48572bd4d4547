"""Parallel loading of the logs of a directory.

Source: apache/kafka LogManager.loadLogs, ``num.recovery.threads.per.data.dir``.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Final

from stratalog.config.topic import TopicConfig
from stratalog.env import Clock
from stratalog.env.progress import Progress, ProgressSum, no_progress
from stratalog.env.threads import outcomes
from stratalog.errors import StorageError
from stratalog.log.load.loaded_log import LoadedLog, LoadRequest
from stratalog.log.load.log_loader import load
from stratalog.model.names import TopicId, TopicPartition
from stratalog.segment.components import Components
from stratalog.spi.segment_store import LogFiles
from stratalog.tier.tier_log import TierLog

_WARM_UP: Final = 16
_SAMPLE: Final = 64
_MANY: Final = 512  # fewer logs load in less than a second, with and without threads


@dataclass(frozen=True, slots=True)
class Loading:
    """A log to load. ``refusal`` is the reason why the log is read-only; None if the log is writable."""

    name: TopicPartition
    files: LogFiles
    components: Components
    config: TopicConfig
    topic_id: TopicId
    remote: TierLog | None
    request: LoadRequest
    refusal: StorageError | None = None

    def run(self, progress: Progress = no_progress) -> LoadedLog:
        """Load the log. Raises the errors of the function ``load`` of ``stratalog.log``."""
        return load(self.files, self.components, self.config, self.request, progress)


def load_all(
    loadings: Sequence[Loading], threads: int, progress: ProgressSum, clock: Clock
) -> Generator[tuple[Loading, LoadedLog | StorageError], None, None]:
    """Load logs in parallel, and then yield each log with its result or its error, in the given order.

    If the iteration ends early, the remaining loaded logs are closed.

    Args:
        loadings: logs to load.
        threads: maximum number of threads.
        progress: receives the progress of each recovery.
        clock: clock of the engine.

    Raises:
        Exception: the first error that is not a StorageError. All loaded logs were closed.
    """
    results = _load_measured(loadings, threads, progress, clock)
    unexpected = [
        result for result in results if isinstance(result, BaseException) and not isinstance(result, StorageError)
    ]
    yielded_count = 0
    try:
        if unexpected:
            raise unexpected[0]
        for loading, result in zip(loadings, results, strict=True):
            yielded_count += 1
            if isinstance(result, LoadedLog | StorageError):
                yield loading, result
    finally:
        for result in results[yielded_count:]:
            if isinstance(result, LoadedLog):
                for segment in result.segments:
                    segment.close()


def _load_measured(
    loadings: Sequence[Loading], threads: int, progress: ProgressSum, clock: Clock
) -> list[LoadedLog | Exception]:
    """Return the result or the error of each log. If there are many clean logs, first measure if threads are faster."""

    def load(part: Sequence[Loading], at_a_time: int) -> list[LoadedLog | Exception]:
        return outcomes(part, lambda loading: loading.run(progress.part()), at_a_time, "stratalog-recovery")

    if threads == 1 or len(loadings) < _MANY or not all(loading.request.clean for loading in loadings):
        return load(loadings, threads)
    # For clean logs in the page cache, threads compete for the interpreter lock, which doubles the time. If the files
    # are not cached, threads wait for the disk in parallel.
    results, durations_ns = load(loadings[:_WARM_UP], threads), dict[int, int]()  # the first logs include one-time work
    for thread_count in (threads, 1):
        began_ns = clock.monotonic_ns()
        results += load(loadings[len(results) : len(results) + _SAMPLE], thread_count)
        durations_ns[thread_count] = clock.monotonic_ns() - began_ns
    return results + load(loadings[len(results) :], 1 if durations_ns[1] < durations_ns[threads] else threads)
