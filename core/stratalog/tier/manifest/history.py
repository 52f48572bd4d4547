"""Earlier states of a log's tier: the roots that the collector has not deleted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TypeAlias

from stratalog.errors import ConfigError, TamperedManifestError
from stratalog.model.names import manifest_key
from stratalog.model.timestamps import unix_ms
from stratalog.tier.manifest.head import HeadFinder, may_continue
from stratalog.tier.manifest.root import Head

AsOf: TypeAlias = int | datetime
"""A version of the manifest, or a timestamp. A timestamp means the latest root that was created at or before it.

A datetime without a time zone is UTC here; ``open_reader`` refuses it.
"""


class History:
    """Reads the manifest roots of one log that still exist, for reads of earlier states. Not thread-safe.

    Args:
        finder: reads and lists roots.
    """

    def __init__(self, finder: HeadFinder) -> None:
        self._finder = finder

    def newest_first(self) -> Iterator[Head]:
        """Yield all roots, newest first; list them at the start, and read each one when it is consumed.

        A root that is deleted in the meantime is skipped, and so is a stale root, which the next root does not
        continue: a writer created its version again after it had been deleted.

        Raises:
            CorruptManifestError: a root is damaged.
            ConfigError: the key of a root's MAC is missing.
            StoreError: the store failed or refused.
        """
        newer: Head | None = None
        for version in reversed(self._versions()):
            found = self._finder.read(version)
            if found is None or (newer is not None and not may_continue(found, newer)):
                continue
            newer = found
            yield found

    def as_of(self, wanted: AsOf) -> Head | None:
        """Return the root of a version, or the latest root at or before a timestamp; None if the log has no root.

        Raises:
            ConfigError: the root was deleted, does not exist yet, or is older than the erasure of a key.
            TamperedManifestError: the latest root has a MAC, and the found root is not linked to a root with a MAC.
            CorruptManifestError, StoreError: as for ``newest_first``.
        """
        if type(wanted) is not int and not isinstance(wanted, datetime):
            raise ConfigError(f"as_of is a version of the manifest (1, 2, ...) or a datetime, not {wanted!r}")
        versions = self._versions()
        if not versions:
            return None
        if isinstance(wanted, datetime):
            found = self._at(versions, wanted)
        else:
            found = self._finder.read(wanted) if wanted in versions else None
        if found is not None and not self._is_continued(versions, found):
            found = None
        head = self._finder.read(versions[-1])
        if found is not None and found.root.mac is None and head is not None and head.root.mac is not None:
            self._check_anchored(versions, found)
        start = head.root.history_start if head is not None else 0
        if found is not None and found.root.version < start:
            raise ConfigError(
                f"{self._finder.log} cannot be read as of {wanted}: a key was erased later, so its history starts at "
                f"version {start}"
            )
        if found is None:
            oldest = self._finder.read(versions[0])
            began = f", made at {_text(oldest.root.created_ms)}" if oldest is not None else ""
            raise ConfigError(
                f"{self._finder.log} cannot be read as of {wanted}: its history has version {versions[0]}{began} to "
                f"version {versions[-1]} (tier.history.ms)"
            )
        return found

    def _is_continued(self, versions: Sequence[int], found: Head) -> bool:
        """Return True if the next root continues ``found``, or if there is none. Otherwise ``found`` is stale."""
        after = versions.index(found.root.version) + 1
        newer = self._finder.read(versions[after]) if after < len(versions) else None
        return newer is None or may_continue(found, newer)

    def _check_anchored(self, versions: Sequence[int], found: Head) -> None:
        """Raise TamperedManifestError unless a chain of hashes links ``found``, without a MAC, to a root with a MAC."""
        last = found
        for version in versions[versions.index(found.root.version) + 1 :]:
            newer = self._finder.read(version)
            if newer is None or newer.root.parent_sha256 != last.sha256:
                break
            if newer.root.mac is not None:
                return
            last = newer
        raise TamperedManifestError(
            f"version {found.root.version} has no MAC, and no later version with a MAC has its hash",
            manifest_key(found.root.prefix, found.root.version),
        )

    def _at(self, versions: Sequence[int], wanted: datetime) -> Head | None:
        """Return the latest root created at or before a timestamp, by binary search: the writers' clocks must agree."""
        wanted_ms = unix_ms(wanted)
        best: Head | None = None
        low, high = 0, len(versions)
        while low < high:
            middle = (low + high) // 2
            found = self._finder.read(versions[middle])
            if found is not None and found.root.created_ms > wanted_ms:
                high = middle
            else:
                low = middle + 1
                best = found or best
        return best

    def _versions(self) -> list[int]:
        return [version for version, _ in self._finder.roots_above(0)]


def _text(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
