"""Errors of damaged or changed bytes."""

from __future__ import annotations

from stratalog.errors.base import StorageError

__all__ = [
    "CorruptBatchError", "CorruptCheckpointError", "CorruptIndexError", "CorruptManifestError", "CorruptObjectError",
    "CorruptSnapshotError", "CorruptionError", "DecompressedSizeError", "TamperedManifestError",
]  # fmt: skip


class CorruptionError(StorageError, kafka_code=2):
    """Stored bytes are damaged, at ``position`` (bytes) in ``file`` (a path or an object key). Never retry."""

    def __init__(self, reason: str, file: str, position: int = 0) -> None:
        super().__init__(reason, file, position)
        self.file, self.position = file, position

    def _where(self) -> str:
        return f" file={self.file} position={self.position}"


class CorruptBatchError(CorruptionError):
    """The bytes at ``position`` are not a valid record batch."""

    advice = "run stratalog verify to list all damage, and restore the records from a replica or a copy"


class CorruptIndexError(CorruptionError):
    """An index is malformed or contradicts its log. Delete the index file: the next open of the log rebuilds it."""

    advice = "delete the index file; the next open rebuilds it from the .log file"


class CorruptSnapshotError(CorruptionError):
    """A producer snapshot is damaged. Delete it: the next open reads an older snapshot or the log instead."""

    advice = "delete the snapshot file; an older snapshot or the log is read instead"


class CorruptCheckpointError(CorruptionError):
    """A checkpoint, or another small text file of a log directory, cannot be parsed."""

    advice = "restore the file from a copy, or delete it if the records of its log can be scanned"


class CorruptManifestError(CorruptionError):
    """A root or page of a tier's manifest is malformed, missing or contradictory, or no root names evicted records."""

    advice = "stop all writers of this tier, and run stratalog verify on its URI"


class TamperedManifestError(CorruptManifestError):
    """The manifest key does not authenticate a manifest: the manifest was changed, replaced, moved or rolled back."""

    advice = "find the program that wrote to the bucket, and restore the newest manifest that the key authenticates"


class CorruptObjectError(CorruptionError):
    """An object of the tier differs from its description in the manifest."""

    advice = (
        "restore the object from a copy: stratalog verify URI --repair --dir DIRECTORY; do not delete local segments"
    )


class DecompressedSizeError(CorruptionError):
    """Decompressed data would exceed ``limits.decompressed.bytes``. No memory above this limit was allocated."""

    advice = "raise limits.decompressed.bytes if the data is genuine"
