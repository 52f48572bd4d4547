"""Upload of closed segments to the tier: first the objects, then the commit of a manifest root that names them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

from stratalog.env import Env
from stratalog.errors import ClosedError, PluginError
from stratalog.spi.layouts import SegmentSource, StoredSegment
from stratalog.spi.objects import ByteSource, ObjectInfo
from stratalog.spi.providers import Section
from stratalog.tier.commit.append_change import LogBounds, check_joins, is_covered, offload_change
from stratalog.tier.commit.committer import Decide
from stratalog.tier.commit.trim_change import epoch_change
from stratalog.tier.manifest.root import Root
from stratalog.tier.store.layout_table import GuardedLayout
from stratalog.tier.store.object_keys import log_prefix, segment_key, upload_id
from stratalog.tier.store.store import TierStore
from stratalog.tier.upload.stored_check import GivenSegment, PutObjects, read_back
from stratalog.tier.upload.uploads import Uploads


@dataclass(frozen=True, slots=True)
class OffloadReport:
    """Result of one offload: the committed entries in order, and the number of segments that the tier already had."""

    committed: tuple[StoredSegment, ...] = ()
    skipped: int = 0

    @property
    def size_bytes(self) -> int:
        """The size of the ``.log`` files of the committed segments, in bytes."""
        return sum(entry.info.size_bytes for entry in self.committed)


class SegmentSink:
    """Uploads the objects that a layout makes of one segment, under new keys; an ObjectSink.

    A key contains the segment's base offset and the leader epoch. ``put_objects``, if given, hashes the objects.
    """

    def __init__(
        self,
        store: TierStore,
        env: Env,
        uploads: Uploads,
        prefix: str,
        base_offset: int,
        leader_epoch: int,
        put_objects: PutObjects | None = None,
    ) -> None:
        self._store, self._env, self._uploads, self._put_objects = store, env, uploads, put_objects
        self._prefix, self._base_offset, self._leader_epoch = prefix, base_offset, leader_epoch
        self._next_keys: dict[str, str] = {}  # the next key for each suffix
        self.sizes: dict[str, int] = {}  # sizes of the objects that were stored, by key
        self.sent_keys: list[str] = []  # keys sent to the store, whatever the result
        self._is_ended = False

    def key(self, suffix: str = "seg") -> str:
        """Return the key that the next ``put`` with this suffix will use."""
        if suffix not in self._next_keys:
            unique = upload_id(self._env.clock.now_ms(), self._env.chance.getrandbits(80))
            self._next_keys[suffix] = segment_key(self._prefix, self._base_offset, self._leader_epoch, unique, suffix)
            self._uploads.begin(self._next_keys[suffix])
        return self._next_keys[suffix]

    def put(self, source: ByteSource, suffix: str = "seg") -> ObjectInfo:
        """Upload one object. Not thread-safe.

        Raises:
            ClosedError: ``close``, ``discard`` or ``leave`` was called, because the layout took too long or has
                returned.
        """
        if self._is_ended:
            raise ClosedError("the segment is no longer being stored: its layout took too long, or has returned")
        key = self.key(suffix)
        del self._next_keys[suffix]
        self.sent_keys.append(key)
        info = self._store.put(key, source if self._put_objects is None else self._put_objects.hash_upload(key, source))
        self.sizes[key] = info.size_bytes
        return info

    def discard(self) -> None:
        """Delete the uploaded objects, because no root will name them, and accept no further object.

        The collector later deletes objects that cannot be deleted now, and incomplete uploads.
        """
        self._is_ended = True
        self._store.delete(self.sent_keys)
        self.leave()

    def leave(self) -> None:
        """Accept no further object, and leave the uploaded objects to the collector, because no root will name them."""
        self._is_ended = True
        self._uploads.leave([*self.sent_keys, *self._next_keys.values()])

    def close(self) -> None:
        """Accept no further object, and release the keys that ``key`` has returned and ``put`` has not used."""
        self._is_ended = True
        self._uploads.end(self._next_keys.values())


class SegmentUploader:
    """Uploads segments of one log with one layout, and commits each segment before the next one is uploaded.

    After an error, the same segments can be offloaded again. Committed segments are then skipped, and others are
    uploaded again under new keys.

    Args:
        label: ``name@version`` of the layout.
        commit: commits a change in a leader epoch, for example ``TierLog.commit``.
        uploads: registers the keys of objects until it is known if a root names them.
    """

    def __init__(
        self,
        store: TierStore,
        env: Env,
        label: str,
        layout: GuardedLayout,
        section: Section | None,
        commit: Callable[[int, Decide], Root | None],
        uploads: Uploads,
    ) -> None:
        self._store, self._env, self._commit, self.uploads = store, env, commit, uploads
        self._label, self._layout, self._section = label, layout, section

    def offload(self, head: Root | None, sources: Iterable[SegmentSource], bounds: LogBounds) -> OffloadReport:
        """Upload and commit closed, durable segments, in order. Commits that succeed before an error stay.

        ``head`` is the latest root that was read. The sources ascend, and are consumed one by one.

        Raises:
            StorageError: a segment leaves a gap, begins below the tier's end offset, reaches past the high watermark,
                or has other leader epochs than the tier has at its offsets.
        """
        committed: list[StoredSegment] = []
        skipped = 0
        for source in sources:
            if is_covered(head, source.info, bounds):
                skipped += 1
                continue
            check_joins(head, source.info, bounds)
            if head is not None and head.leader_epoch < bounds.leader_epoch:
                head = self._commit(bounds.leader_epoch, lambda root: epoch_change(root, "a new leader epoch begins"))
            entry = self.upload(source, bounds.leader_epoch)
            try:
                head = self._commit(bounds.leader_epoch, partial(offload_change, entry=entry, bounds=bounds))
            except BaseException:
                self.uploads.leave(entry.keys)
                raise
            if head is not None and entry in head.entries:  # the root itself holds the newest entries
                committed.append(entry)
                self.uploads.end(entry.keys)
            else:
                skipped += 1
                self.uploads.leave(entry.keys)
        return OffloadReport(tuple(committed), skipped)

    def upload(self, source: SegmentSource, leader_epoch: int) -> StoredSegment:
        """Store a segment under new keys and return its manifest entry, without a commit.

        If ``tier.verify`` requires it, the segment is read back. After an error, the uploaded objects are deleted.

        Raises:
            StorageError: the segment cannot be read.
            ConfigError: a small file of the segment is larger than ``limits.index.bytes``.
            PluginError: the layout failed, or the layout or the store did not store the bytes of the segment.
        """
        log, base_offset = source.info.log, source.info.base_offset
        if self._layout.takes_uncompressed and source.uncompress is not None:
            source = source.uncompress(source)
        for kind, data in source.files.items():
            self._store.limits.check_index(len(data), f"the {kind} file of {log} at {base_offset}")
        verification, is_bundled = self._store.verification, self._layout.guard.is_bundled
        put_objects = PutObjects(self._store) if verification.is_due(self._label, is_bundled=is_bundled) else None
        prefix = log_prefix(log, source.info.topic_id)
        sink = SegmentSink(self._store, self._env, self.uploads, prefix, base_offset, leader_epoch, put_objects)
        segment = GivenSegment(source)
        try:
            entry = self._layout.write(segment.source, sink, self._section)
            entry = replace(entry, layout=self._label)
            segment.check_claims(entry, sink.sizes, self._layout)
            if put_objects is not None:
                self._read_back(segment, entry, put_objects)
        except Exception:
            sink.discard()
            raise
        except BaseException:  # the process may end: send no further request
            sink.leave()
            raise
        sink.close()
        return entry

    def _read_back(self, segment: GivenSegment, entry: StoredSegment, put_objects: PutObjects) -> None:
        try:
            read_back(entry, segment.sha256, segment.source.files, self._store, self._layout)
        except PluginError:
            put_objects.check()  # raises a PluginError of the store if the store is the cause
            raise
        self._store.verification.record_success(self._label)
