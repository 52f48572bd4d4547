"""Doing something to each of many logs, whatever becomes of one of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from stratalog.env.threads import outcomes
from stratalog.errors import StorageError
from stratalog.log.log import Log
from stratalog.tier.store.store import is_of_store

R = TypeVar("R")

NAMED_FAILURES: Final = 10


def for_each(
    logs: Sequence[Log], work: Callable[[Log], R], threads: int = 1, needs_store: Callable[[Log], bool] = lambda _: True
) -> list[R]:
    """Do something to each log, ``threads`` at a time; the results in the order of the logs.

    After a failure of the store nothing more that needs it is begun, as it would fail as well. A failure of one log keeps
    no other from its turn.

    Raises:
        StorageError: what failed first, with notes about the others, after all had their turn.
        Exception: what ``work`` raised that is none of ours.
    """
    failing = threading.Event()

    def guarded(log: Log) -> tuple[R, ...]:
        if failing.is_set() and needs_store(log):
            return ()
        try:
            return (work(log),)
        except StorageError as error:
            if is_of_store(error):
                failing.set()
            raise

    results, failed = list[R](), list[StorageError]()
    notes = list[str]()
    for log, outcome in zip(logs, outcomes(logs, guarded, threads, "stratalog-log"), strict=True):
        if isinstance(outcome, tuple):
            results.extend(outcome)
        elif isinstance(outcome, StorageError):
            place = 0 if is_of_store(outcome) else len(failed)  # what ended the work is what to raise
            failed.insert(place, outcome)
            notes.insert(place, f"{log.name}: {outcome}")
        else:
            raise outcome
    if failed and len(logs) > 1:
        said = f"{len(results)} of {len(logs)} logs are done, {len(failed)} failed"
        failed[0].__notes__ = [*notes[:NAMED_FAILURES], said]
    if failed:
        raise failed[0]
    return results
