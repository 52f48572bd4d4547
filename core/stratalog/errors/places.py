"""Errors of log directories and object stores that cannot be used."""

from __future__ import annotations

from stratalog.errors.base import StorageError


class LogDirError(StorageError):
    """A log directory cannot be used. ``path`` is the directory or a file in it."""

    kafka_code = 56

    def __init__(self, reason: str, path: str) -> None:
        super().__init__(reason, path)
        self.path = path

    def _where(self) -> str:
        return f" path={self.path}"


class LogDirNotFoundError(LogDirError):
    """There is no log directory, or no folder of a log, at ``path``."""

    advice = "check the path; a log directory contains one folder for each partition, named TOPIC-PARTITION"


class LogDirLockedError(LogDirError):
    """Another engine or a running Kafka broker holds the directory."""

    advice = "stop the engine or broker that uses the directory; commands that only read work while it runs"


class LogDirPermissionError(LogDirError):
    """The operating system does not permit this user the operation."""

    advice = "give this user read and write access to the path"


class LogDirOfflineError(LogDirError):
    """An I/O error took the directory out of service. Repair the disk, then open again."""

    advice = "repair the disk, then open the engine again; a failed write is never retried"


class NotAFileError(LogDirError):
    """A folder, FIFO, socket, device or symbolic link has the name of a file. Only the log of that file is affected."""

    advice = "move it to another folder, and restore the file from a copy if it contained records"


class FileReplacedError(LogDirError):
    """Another process removed, replaced or truncated a file that the engine writes to.

    The log is out of service; other logs stay in service. Records that were not durable before this error may be lost.
    """

    advice = "stop the process that changes files of the log, restore the files, then open the engine again"


class OutOfResourcesError(LogDirError):
    """The system lacks space, descriptors or memory for a call. The call was undone, and the log stays in service."""


class SystemLimitError(OutOfResourcesError):
    """The process has too many open files, or the system too little memory. The same call may succeed later."""

    retriable = True
    advice = "raise the limit of open files (ulimit -n) or lower limits.open.files, then repeat the call"


class DiskFullError(OutOfResourcesError):
    """No space is left. The call was undone; reads still work."""

    advice = "free space on this disk, then repeat the call"


class SegmentGoneError(LogDirError):
    """A segment's file was deleted, truncated or closed while it was read. Read again from the same offset."""

    retriable = True
    advice = "read again from the same offset; retention deleted the segment, or only the tier has it"


class ReadOnlyError(LogDirError):
    """A write was called on an object that was opened for reading."""

    advice = "open the log directory or the store with an engine, which can write"


class StoreError(StorageError):
    """An object store refused a request or failed. ``key`` is the object or prefix."""

    kafka_code = 56

    def __init__(self, reason: str, key: str) -> None:
        super().__init__(reason, key)
        self.key = key

    def _where(self) -> str:
        return f" key={self.key}"


class ObjectNotFoundError(StoreError):
    """There is no such object."""


class StorePermissionError(StoreError):
    """The credentials do not allow the request."""

    advice = "grant list, get, put and delete on the prefix, or correct the credentials"


class BucketNotFoundError(StoreError):
    """The bucket, or the root folder of the store, is missing."""

    advice = "create the bucket or folder, or correct the tier URI; stratalog does not create buckets"


class StoreTimeoutError(StoreError):
    """The store did not answer before the deadline."""

    retriable = True
    advice = "check the network and the endpoint; the same call may succeed later"


class StoreThrottledError(StoreError):
    """The store throttles requests. Send none for ``retry_after_ms``, which is 0 if the store gave no time."""

    retriable = True
    advice = "lower the request rate; the same call may succeed later"
    retry_after_ms: int = 0


class TierUnavailableError(StoreError):
    """The store of the tier was unavailable when the engine was opened, and has been unavailable since.

    Records on local disk can be read. Records that only the tier has are not lost and not out of range: retry later.
    """

    retriable = True
    advice = "check the store and the network, then repeat the call; an open engine reconnects by itself"


class StoreUntrustedError(StoreError):
    """The store is available again but failed its checks. The engine does not use it until the next open."""

    advice = "correct the store or the tier URI, then open the engine again; until then only local disk is read"


class LocalLimitError(StorageError):
    """An append would exceed the local limit of a tiered log: too little was offloaded. Retry the append later."""

    retriable = True
    kafka_code = 89
    advice = "check why offloading fails, raise local.hard.limit.bytes, or set tier.outage.policy=grow"
