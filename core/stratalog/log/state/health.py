"""Health of a log: if it accepts changes, and if not, the error that callers get."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from stratalog.errors import (
    ClosedError,
    CorruptBatchError,
    LogDirOfflineError,
    OutOfResourcesError,
    StorageError,
)
from stratalog.model.names import TopicPartition


class Health:
    """Health of one log. ``close`` is called under the log's lock; the other methods need no lock.

    Attributes:
        name: topic and partition.
        damage: damage in the log's files; None if there is none. The log can be read up to the position of the damage.
            Appends raise the error.
        failure: the error that took the log out of service; None if the log is in service. Appends raise it; reads
            continue.
        closed: True if the log is closed.
        closed_cleanly: True if the log is closed, and its next opening needs no recovery.
    """

    __slots__ = ("_on_offline", "closed", "closed_cleanly", "damage", "failure", "name")

    def __init__(
        self,
        name: TopicPartition,
        damage: CorruptBatchError | None,
        failure: StorageError | None,
        on_offline: Callable[[StorageError], None] | None,
    ) -> None:
        self.name, self.damage, self.failure = name, damage, failure
        self.closed = self.closed_cleanly = False
        self._on_offline = on_offline  # called when the whole directory has failed

    @property
    def is_good(self) -> bool:
        """True if no error took the log out of service, and no damage is known. A closed log can be good."""
        return self.failure is None and self.damage is None

    def check_writable(self) -> None:
        """Raise an error if the log is closed, out of service or damaged."""
        self.check_in_service()
        if self.damage is not None:
            raise self.damage.with_traceback(None)

    def check_in_service(self) -> None:
        """Raise ClosedError if the log is closed, or the error that took the log out of service.

        Damage raises no error here: a damaged log can be synced.
        """
        if self.closed:
            raise ClosedError(f"log {self.name} is closed")
        if self.failure is not None:
            raise self.failure.with_traceback(None)

    def close(self, *, cleanly: bool = False) -> None:
        """Refuse all further changes, because the log's files are closed. For ``cleanly``, see ``closed_cleanly``."""
        self.closed, self.closed_cleanly = True, cleanly

    def refuse(self, error: StorageError) -> None:
        """Take the log out of service, unless it already is. Later changes raise ``error``."""
        if self.failure is None:
            self.failure = error

    def fail(self, error: StorageError) -> None:
        """Take the log out of service, unless it already is; report a LogDirOfflineError to the directory in any case.

        Later changes raise ``error``. If ``error`` is an OutOfResourcesError, which advises a retry, later changes raise
        a ClosedError instead, with the advice to open the log again.
        """
        advice = f"log {self.name} is out of service, because a change failed, {error.reason}: open it again"
        self.refuse(ClosedError(advice) if isinstance(error, OutOfResourcesError) else error)
        if isinstance(error, LogDirOfflineError) and self._on_offline is not None:
            self._on_offline(error)

    @contextlib.contextmanager
    def guard(self, change: str) -> Iterator[None]:
        """Take the log out of service if the guarded block fails, and raise the block's error in any case.

        The log stays in service after an OutOfResourcesError (no disk space, no file descriptors), because the failed
        call has changed nothing. After Ctrl-C, for example, files may contain bytes that the log does not count;
        recovery finds them. ``change`` describes the block in errors.
        """
        try:
            yield
        except BaseException as error:
            self.handle_error(change, error)
            raise

    def handle_error(self, change: str, error: BaseException) -> None:
        """Handle ``error`` as ``guard`` does, without the cost of a context manager. ``error`` is not raised."""
        if not isinstance(error, OutOfResourcesError):
            self.fail_after(change, error)

    def fail_after(self, change: str, error: BaseException) -> None:
        """Take the log out of service, because ``change`` failed with ``error`` and may be incomplete."""
        if not isinstance(error, StorageError):
            reason = (
                f"log {self.name} is out of service, because {change} failed ({type(error).__name__}): open it again"
            )
            error = ClosedError(reason)
        self.fail(error)
