"""Errors of log directories and object stores that cannot be used."""

from __future__ import annotations

from stratalog.errors.base import StorageError

__all__ = [
    "BucketNotFoundError", "DiskFullError", "FileReplacedError", "LocalLimitError", "LogDirError", "LogDirLockedError",
    "LogDirNotFoundError", "LogDirOfflineError", "LogDirPermissionError", "NotAFileError", "ObjectNotFoundError",
    "OutOfResourcesError", "ReadOnlyError", "SegmentGoneError", "StoreError", "StorePermissionError",
    "StoreThrottledError", "StoreTimeoutError", "StoreUntrustedError", "SystemLimitError", "TierUnavailableError",
]  # fmt: skip


class LogDirError(StorageError, kafka_code=56):
    """A log directory cannot be used. ``path`` is the directory or a file in it."""

    def __init__(self, reason: str, path: str) -> None:
        super().__init__(reason, path)
        self.path = path

    def _where(self) -> str:
        return f" path={self.path}"


class LogDirNotFoundError(LogDirError):
    """``path`` does not exist, or is not a log directory."""

    advice = "check the path; a log directory contains one folder for each partition, named TOPIC-PARTITION"


class LogDirLockedError(LogDirError):
    """Another engine or a running Kafka broker holds the lock of the log directory."""

    advice = "stop the engine or broker that uses the directory; commands that only read work while it runs"


class LogDirPermissionError(LogDirError):
    """The operating system denies this user the operation on ``path``."""

    advice = "give this user read and write access to the path"


class LogDirOfflineError(LogDirError):
    """An I/O error took the log directory out of service. Repair the disk, then open the engine again."""

    advice = "repair the disk, then open the engine again; a failed write is never retried"


class NotAFileError(LogDirError):
    """The path of a file is a folder, FIFO, socket, device or symbolic link, or its name is too long.

    This error is also raised if a folder cannot be created or renamed because its new name exists. Other logs are not
    affected.
    """

    advice = "move it to another folder, and restore the file from a copy if it contained records"


class FileReplacedError(LogDirError):
    """Another process removed, replaced or truncated a file that the engine writes to.

    The log is out of service; other logs stay in service. Records that were not durable before this error may be lost.
    """

    advice = "stop the process that changes files of the log, restore the files, then open the engine again"


class OutOfResourcesError(LogDirError):
    """The system lacks disk space, descriptors or memory for a call. The call was undone; the log stays in service."""


class SystemLimitError(OutOfResourcesError, retriable=True):
    """The process or system is out of descriptors, memory or locks, or a file is busy. Repeat the call later."""

    advice = "raise the limit of open files (ulimit -n) or lower limits.open.files, then repeat the call"


class DiskFullError(OutOfResourcesError):
    """The disk or a quota is full, or a file would be too large. The call was undone; reads still work."""

    advice = "free space on this disk, then repeat the call"


class SegmentGoneError(LogDirError, retriable=True):
    """A segment was deleted, replaced, truncated or closed during a call that used it.

    Repeat the call. A ``Reader`` must be refreshed first.
    """

    advice = "if you read with a Reader, refresh it; then read again from the same offset"


class ReadOnlyError(LogDirError):
    """A method that writes was called on a log directory, store or tier that is open only for reading."""

    advice = "open the log directory or the store with an engine, which can write"


class StoreError(StorageError, kafka_code=56):
    """An object store refused a request or failed. ``key`` is an object's key, a prefix or a URI."""

    def __init__(self, reason: str, key: str) -> None:
        super().__init__(reason, key)
        self.key = key

    def _where(self) -> str:
        return f" key={self.key}"


class ObjectNotFoundError(StoreError):
    """The store has no object with the key ``key``, or this object of a staged segment is incomplete."""


class StorePermissionError(StoreError):
    """The credentials do not allow the request, or the function that supplies credentials failed."""

    advice = "grant list, get, put and delete on the prefix, or correct the credentials"


class BucketNotFoundError(StoreError):
    """The bucket, or the root folder of the store, does not exist."""

    advice = "create the bucket or folder, or correct the tier URI; stratalog does not create buckets"


class StoreTimeoutError(StoreError, retriable=True):
    """The store did not respond before the deadline, or it is unknown if the store carried out a change."""

    advice = "check the network and the endpoint; the same call may succeed later"


class StoreThrottledError(StoreError, retriable=True):
    """The store throttles requests, or other writers committed first in every attempt.

    Retry after ``retry_after_ms``, which is 0 if the store did not send a time.
    """

    advice = "lower the request rate; the same call may succeed later"
    retry_after_ms: int = 0


class TierUnavailableError(StoreError, retriable=True):
    """The tier's store was unavailable when an engine or a log was opened, and the log has not reopened the tier yet.

    An open engine still reads the records on local disk. Records that only the tier has are not lost: retry later.
    """

    advice = "check the store and the network, then repeat the call; an open engine reconnects by itself"


class StoreUntrustedError(StoreError):
    """The tier's store is available again, but does not create objects atomically, although its plugin declares it.

    The engine does not use the store until the engine is opened again.
    """

    advice = "correct the store or the tier URI, then open the engine again; until then only local disk is read"


class LocalLimitError(StorageError, kafka_code=89, retriable=True):
    """An append would exceed ``local.hard.limit.bytes`` of a tiered log. Retry after segments were offloaded.

    With ``tier.outage.policy=block``, the append has waited for ``tier.outage.block.ms`` before this error.
    """

    advice = "check why offloading fails, raise local.hard.limit.bytes, or set tier.outage.policy=grow"
