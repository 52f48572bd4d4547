"""Run a function on many logs; the failure of one log does not stop the others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from stratalog.env.threads import outcomes
from stratalog.errors import ClosedError, StorageError
from stratalog.log.log import Log
from stratalog.tier.store.store import is_of_store

R = TypeVar("R")

NAMED_FAILURES: Final = 10


def for_each(
    logs: Sequence[Log], work: Callable[[Log], R], threads: int = 1, needs_store: Callable[[Log], bool] = lambda _: True
) -> list[R]:
    """Call ``work`` with each log on up to ``threads`` threads, and return the results in the order of the logs.

    If ``work`` fails for one log, it is still called for the other logs. After a failure of the tier's store, ``work``
    is not called for further logs for which ``needs_store`` returns True. A log whose topic was deleted meanwhile has no
    result.

    Raises:
        StorageError: the first failure of the store if there is one, otherwise the first failure of a log. Raised after
            all logs have been processed, with notes about the other failures.
        Exception: the first exception of ``work`` that is not a StorageError. Raised after all logs have been
            processed.
    """
    store_failed = threading.Event()

    def call_work(log: Log) -> tuple[R, ...]:
        if store_failed.is_set() and needs_store(log):
            return ()
        try:
            return (work(log),)
        except StorageError as error:
            if isinstance(error, ClosedError) and log.maintenance.is_abandoned:
                return ()
            if is_of_store(error):
                store_failed.set()
            raise

    results, failed = list[R](), list[tuple[Log, StorageError]]()
    for log, outcome in zip(logs, outcomes(logs, call_work, threads, "stratalog-log"), strict=True):
        if isinstance(outcome, tuple):
            results.extend(outcome)
        elif isinstance(outcome, StorageError):
            failed.append((log, outcome))
        else:
            raise outcome
    if failed:
        raise _first_failure(failed, logs, len(results))
    return results


def _first_failure(failed: list[tuple[Log, StorageError]], logs: Sequence[Log], done: int) -> StorageError:
    """Return the first failure of the store, which stopped the work. Without one, return the first failure of a log.

    Notes of the error name the failures.
    """
    failed.sort(key=lambda failure: not is_of_store(failure[1]))
    error = failed[0][1]
    if len(logs) > 1:
        summary = f"{done} of {len(logs)} logs are done, {len(failed)} failed"
        error.__notes__ = [*(f"{log.name}: {failure}" for log, failure in failed[:NAMED_FAILURES]), summary]
    return error
