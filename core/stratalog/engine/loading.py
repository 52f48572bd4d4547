"""Loading the logs of a directory, several at a time.

Source: apache/kafka LogManager.loadLogs, ``num.recovery.threads.per.data.dir``.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

from stratalog.config.topic import TopicConfig
from stratalog.env.threads import outcomes
from stratalog.errors import StorageError
from stratalog.log.load import LoadedLog, LoadRequest, RecoveryProgress, load
from stratalog.log.remote import RemoteLog
from stratalog.model.names import TopicId, TopicPartition
from stratalog.segment.components import Components
from stratalog.spi.segments import LogFiles

LogProgress = Callable[[TopicPartition, int, int], None]
"""Told while logs are recovered, on the threads that do it: which, how many bytes are looked at, and of how many."""


@dataclass(frozen=True, slots=True)
class Loading:
    """A log that is about to be loaded, with all that it needs."""

    name: TopicPartition
    files: LogFiles
    parts: Components
    config: TopicConfig
    topic_id: TopicId
    remote: RemoteLog | None
    request: LoadRequest

    def run(self, progress: LogProgress | None = None) -> LoadedLog:
        """Load it; errors as ``load``."""
        return load(self.files, self.parts, self.config, self.request, self._progress(progress))

    def _progress(self, told: LogProgress | None) -> RecoveryProgress | None:
        if told is None:
            return None
        return lambda done_bytes, total_bytes: told(self.name, done_bytes, total_bytes)


def load_all(
    loadings: Sequence[Loading], threads: int, progress: LogProgress | None
) -> Generator[tuple[Loading, LoadedLog | StorageError], None, None]:
    """Load logs; each with what came of it, in the order in which they are given, whoever was done first.

    Args:
        loadings: one a log.
        threads: how many at a time.
        progress: told how far each recovery is.

    Raises:
        Exception: one that is no StorageError, of the first log that met it; nothing stays open then.
    """
    found = outcomes(loadings, lambda loading: loading.run(progress), threads, "stratalog-recovery")
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
