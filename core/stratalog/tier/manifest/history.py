"""Earlier states of a log's tier: the roots that the collector has not deleted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TypeAlias

from stratalog.errors import ConfigError, TamperedManifestError
from stratalog.model.timestamps import from_unix_ms, unix_ms
from stratalog.tier.manifest.head import HeadFinder, may_continue
from stratalog.tier.manifest.root import Head
from stratalog.tier.store.object_keys import manifest_key

AsOf: TypeAlias = int | datetime
"""A version of the manifest, or a timestamp. A timestamp means the latest root that was created at or before it.

A datetime without a time zone is UTC here; ``open_reader`` refuses it.
"""


class History:
    """Reads the manifest roots of one log that still exist, for reads of earlier states. Not thread-safe."""

    def __init__(self, finder: HeadFinder) -> None:
        self._finder = finder

    def newest_first(self) -> Iterator[Head]:
        """Yield all roots, newest first; list them at the start, and read each one when it is consumed.

        A root that is deleted in the meantime is skipped. A stale root is skipped, too: a writer created it again after
        its deletion, and the next root does not continue it.
        """
        newer: Head | None = None
        for version in reversed(self._versions()):
            head = self._finder.read(version)
            if head is None or (newer is not None and not may_continue(head, newer)):
                continue
            newer = head
            yield head

    def as_of(self, version_or_time: AsOf) -> Head | None:
        """Return the root of a version, or the latest root at or before a timestamp; None if the log has no root.

        Raises:
            ConfigError: the root was deleted, does not exist yet, or is older than the erasure of a key.
            TamperedManifestError: the latest root has a MAC, and no chain of hashes links the root to a root with a
                MAC.
        """
        if type(version_or_time) is not int and not isinstance(version_or_time, datetime):
            raise ConfigError(f"as_of is a version of the manifest (1, 2, ...) or a datetime, not {version_or_time!r}")
        versions = self._versions()
        if not versions:
            return None
        if isinstance(version_or_time, datetime):
            head = self._find_at(versions, version_or_time)
        else:
            head = self._finder.read(version_or_time) if version_or_time in versions else None
        if head is not None and not self._is_continued(versions, head):
            head = None
        latest = self._finder.read(versions[-1])
        if head is not None and head.root.mac is None and latest is not None and latest.root.mac is not None:
            self._check_anchored(versions, head)
        start = latest.root.history_start if latest is not None else 0
        if head is not None and head.root.version < start:
            raise ConfigError(
                f"{self._finder.log} cannot be read as of {version_or_time}: a key was erased later, so its history starts at "
                f"version {start}"
            )
        if head is None:
            oldest = self._finder.read(versions[0])
            began = ""
            if oldest is not None:
                began = f", created at {from_unix_ms(oldest.root.created_ms).isoformat(timespec='milliseconds')}"
            raise ConfigError(
                f"{self._finder.log} cannot be read as of {version_or_time}: its history has version {versions[0]}{began} to "
                f"version {versions[-1]} (tier.history.ms)"
            )
        return head

    def _is_continued(self, versions: Sequence[int], head: Head) -> bool:
        """Return True if the next root continues ``head``, or if there is none. Otherwise ``head`` is stale."""
        after = versions.index(head.root.version) + 1
        newer = self._finder.read(versions[after]) if after < len(versions) else None
        return newer is None or may_continue(head, newer)

    def _check_anchored(self, versions: Sequence[int], head: Head) -> None:
        """Raise TamperedManifestError unless a chain of hashes links ``head``, without a MAC, to a root with a MAC."""
        last = head
        for version in versions[versions.index(head.root.version) + 1 :]:
            newer = self._finder.read(version)
            if newer is None or newer.root.parent_sha256 != last.sha256:
                break
            if newer.root.mac is not None:
                return
            last = newer
        raise TamperedManifestError(
            f"version {head.root.version} has no MAC, and no later version with a MAC has its hash",
            manifest_key(head.root.prefix, head.root.version),
        )

    def _find_at(self, versions: Sequence[int], timestamp: datetime) -> Head | None:
        """Return the latest root created at or before a timestamp, by binary search: the writers' clocks must agree."""
        timestamp_ms = unix_ms(timestamp)
        best: Head | None = None
        low, high = 0, len(versions)
        while low < high:
            middle = (low + high) // 2
            head = self._finder.read(versions[middle])
            if head is not None and head.root.created_ms > timestamp_ms:
                high = middle
            else:
                low = middle + 1
                best = head or best
        return best

    def _versions(self) -> list[int]:
        return [version for version, _ in self._finder.roots_above(0)]
