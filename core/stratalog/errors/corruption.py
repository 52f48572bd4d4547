"""Errors of damaged or changed bytes."""

from __future__ import annotations

from stratalog.errors.base import StorageError


class CorruptionError(StorageError):
    """Stored bytes are damaged, at ``position`` (bytes) in ``file``. Never retry."""

    kafka_code = 2

    def __init__(self, reason: str, file: str, position: int = 0) -> None:
        super().__init__(reason, file, position)
        self.file, self.position = file, position

    def _where(self) -> str:
        return f" file={self.file} position={self.position}"


class CorruptBatchError(CorruptionError):
    """The bytes at ``position`` are not a valid record batch."""

    advice = "restore this range from a replica or the tier; an engine cuts a damaged tail when it opens uncleanly"


class CorruptIndexError(CorruptionError):
    """An index contradicts its log. Indexes are disposable: the index is rebuilt from the log."""

    advice = "delete the index file, it is rebuilt from the .log at the next open"


class CorruptSnapshotError(CorruptionError):
    """A producer snapshot is damaged. An older snapshot, or the log, is read instead."""

    advice = "delete the snapshot, an older one or the log is read instead"


class CorruptCheckpointError(CorruptionError):
    """A checkpoint file cannot be parsed."""

    advice = "delete the file if its log can be scanned again, or restore it"


class CorruptManifestError(CorruptionError):
    """A manifest root cannot be parsed, or does not continue the chain before it."""

    advice = "do not write to this tier; compare the root with the one before it"


class TamperedManifestError(CorruptManifestError):
    """A manifest fails its authentication with the key: it was changed, replaced, moved or rolled back."""

    advice = "find out who wrote to the bucket, and bring back the newest state that the key authenticates"


class CorruptObjectError(CorruptionError):
    """An object of the tier differs from its description in the manifest."""

    advice = "restore the object from a version or a copy of the bucket; never delete local data for it"


class DecompressedSizeError(CorruptionError):
    """Compressed data would grow past the limit; nothing was allocated beyond it."""

    advice = "if the data is genuine, raise limits.decompressed.bytes"
