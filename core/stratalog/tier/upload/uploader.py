"""Upload of closed segments to the tier: objects first, then the root that names them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from stratalog.env import Env
from stratalog.epochs.epoch_cache import EpochCache
from stratalog.epochs.lineage import first_divergence
from stratalog.errors import ClosedError, PluginError, StorageError
from stratalog.model.names import TopicPartition, segment_key, upload_id
from stratalog.model.offsets import EpochEntry
from stratalog.model.segment_info import SegmentInfo
from stratalog.spi.layouts import SegmentSource, StoredSegment
from stratalog.spi.objects import ByteSource, ObjectInfo
from stratalog.spi.providers import Section
from stratalog.tier.commit.committer import Decide
from stratalog.tier.manifest.root import Change, ChangeKind, Root, TopicNote
from stratalog.tier.store.layout_table import GuardedLayout
from stratalog.tier.store.store import TierStore
from stratalog.tier.upload.stored_check import GivenSegment, PutObjects
from stratalog.tier.upload.uploads import Uploads


@dataclass(frozen=True, slots=True)
class OffloadReport:
    """Result of one call: the committed entries, in order; ``skipped`` segments were in the tier already."""

    committed: tuple[StoredSegment, ...] = ()
    skipped: int = 0

    @property
    def size_bytes(self) -> int:
        """The size of the committed ``.log`` files."""
        return sum(entry.info.size_bytes for entry in self.committed)


@dataclass(frozen=True, slots=True)
class LogBounds:
    """State of the log when segments are offloaded; committed offsets never fall below earlier ones."""

    leader_epoch: int
    log_start: int
    high_watermark: int
    topic: TopicNote | None = None


class SegmentSink:
    """Receives the objects of one segment from a layout, under new keys of one base offset and epoch.

    ``put_objects``, if given, hashes the objects.
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
        self._next: dict[str, str] = {}  # by suffix
        self.sizes: dict[str, int] = {}  # of each object that was stored, by key
        self.tried: list[str] = []  # keys sent to the store, whatever the result
        self._ended = False

    def key(self, suffix: str = "seg") -> str:
        """Return the key that the next ``put`` with this suffix will use."""
        if suffix not in self._next:
            unique = upload_id(self._env.clock.now_ms(), self._env.chance.getrandbits(80))
            self._next[suffix] = segment_key(self._prefix, self._base_offset, self._leader_epoch, unique, suffix)
            self._uploads.begin(self._next[suffix])
        return self._next[suffix]

    def put(self, source: ByteSource, suffix: str = "seg") -> ObjectInfo:
        """Upload one object; a layout calls this from one thread.

        Raises:
            ClosedError: the layout's call has returned, or took too long.
        """
        if self._ended:
            raise ClosedError("the segment is not stored any more: its layout took too long, or has returned")
        key = self.key(suffix)
        del self._next[suffix]
        self.tried.append(key)
        info = self._store.put(key, source if self._put_objects is None else self._put_objects.hashed(key, source))
        self.sizes[key] = info.size_bytes
        return dataclasses.replace(info, key=key)

    def discard(self) -> None:
        """Delete the uploaded objects, because no root will name them. The collector deletes the rest.

        A failed upload may have left parts, so the collector searches in any case.
        """
        self._ended = True
        self._store.delete(self.tried)
        self._uploads.leave([*self.tried, *self._next.values()])

    def close(self) -> None:
        """Accept no further object, and remove the keys that were asked for and not used."""
        self._ended = True
        self._uploads.end(self._next.values())


class SegmentUploader:
    """Uploads segments of one log with one layout, and commits each before the next.

    A repetition is safe at every point. A range that the head covers is skipped. An upload that was not committed is
    repeated under a new key.

    Args:
        store: receives the objects.
        env: clock and chance.
        label: ``name@version`` of the layout.
        layout: turns a segment into objects.
        section: the topic's settings of the layout, if it has any.
        commit: publishes a change under a leader epoch, as ``Committer.commit``.
        uploads: records every key.
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

    def offload(self, head: Root | None, prefix: str, sources: Iterable[SegmentSource], at: LogBounds) -> OffloadReport:
        """Upload and commit segments, in order; the iterable is consumed one by one, so it can open files late.

        Args:
            head: a recent head.
            prefix: of the log in the tier.
            sources: closed, durable segments, ascending.
            at: the log's epoch and bounds.

        Returns:
            The committed entries and the number of skipped segments; a later error undoes none of them.

        Raises:
            FencedEpochError: another writer owns the log.
            StorageError: a segment leaves a gap, overlaps the tier's end, reaches past the high watermark, or has other
                leader epochs than the tier has at its offsets.
            StoreError: the store failed; call again with the same segments.
        """
        committed: list[StoredSegment] = []
        skipped = 0
        for source in sources:
            if _is_covered(head, source.info, at):
                skipped += 1
                continue
            _check_joins(head, source.info, at)
            if head is not None and head.leader_epoch < at.leader_epoch:
                head = self._commit(at.leader_epoch, lambda root: claimed(root, _CLAIM_REASON))
            stored = self.upload(source, prefix, at.leader_epoch)
            try:
                head = self._commit(at.leader_epoch, _adding(stored, at))
            except BaseException:
                self.uploads.leave(stored.keys)
                raise
            if head is not None and stored in head.entries:  # the root itself holds the newest entries
                committed.append(stored)
                self.uploads.end(stored.keys)
            else:
                skipped += 1
                self.uploads.leave(stored.keys)
        return OffloadReport(tuple(committed), skipped)

    def upload(self, source: SegmentSource, prefix: str, leader_epoch: int) -> StoredSegment:
        """Store a segment under new keys, without a root that names it; if that fails, delete its objects.

        The claims of the layout are compared with its input. If ``tier.verify`` says so, the segment is also read back.

        Raises:
            StorageError: the segment cannot be read.
            ConfigError: a small file of the segment is above ``limits.index.bytes``: it could not be read back.
            PluginError: the layout failed, or did not store its input, or the store did not keep it.
            StoreError: the store failed.
        """
        base_offset = source.info.base_offset
        for kind, data in source.files.items():
            self._store.limits.check_index(len(data), f"the {kind} file of {source.info.log} at {base_offset}")
        verification, is_bundled = self._store.verification, self._layout.guard.is_bundled
        put_objects = PutObjects(self._store) if verification.is_due(self._label, is_bundled=is_bundled) else None
        sink = SegmentSink(self._store, self._env, self.uploads, prefix, base_offset, leader_epoch, put_objects)
        given = GivenSegment(source)
        try:
            stored = self._layout.write(given.source, sink, self._section)
            stored = dataclasses.replace(stored, layout=self._label)
            given.check_claims(stored, sink.sizes, self._layout)
            if put_objects is not None:
                self._read_back(given, stored, put_objects)
        except Exception:
            sink.discard()
            raise
        sink.close()
        return stored

    def _read_back(self, given: GivenSegment, stored: StoredSegment, put_objects: PutObjects) -> None:
        try:
            given.read_back(stored, self._store, self._layout)
        except PluginError:
            put_objects.check()  # raises if the store is the cause
            raise
        self._store.verification.passed(self._label)


_CLAIM_REASON: Final = "a new leader epoch begins"


def claimed(root: Root | None, reason: str) -> Change | None:
    """Return a change that only begins a new epoch, which stops the previous writer at its next commit."""
    if root is None:
        return None
    return Change(
        kind=ChangeKind.CLAIM,
        reason=reason,
        log_start=root.log_start,
        high_watermark=root.high_watermark,
        first_dirty_offset=root.first_dirty_offset,
    )


def created(at: LogBounds) -> Decide:
    """Return a decision to make a log known to its tier before its first segment; a known log does not change.

    A log that left the tier (``clear``) is unknown until this commit.
    """

    def decide(root: Root | None) -> Change | None:
        if not is_unknown(root):
            return None
        log_start = max(at.log_start, root.log_start if root else 0)
        return Change(
            kind=ChangeKind.CREATE,
            reason="the log has a tier from now on",
            log_start=log_start,
            high_watermark=max(at.high_watermark, log_start, root.high_watermark if root else 0),
            first_dirty_offset=root.first_dirty_offset if root else 0,
            topic=at.topic,
        )

    return decide


def is_unknown(root: Root | None) -> bool:
    """Return True if a tier with this head does not list the log."""
    return root is None or root.change == ChangeKind.CLEAR


def cutting(offset: int, reason: str) -> Decide:
    """Return a decision to remove the segments from ``offset`` on, if there are any."""

    def decide(root: Root | None) -> Change | None:
        if root is None or root.end_offset <= offset:
            return None
        if offset < root.log_start:
            raise StorageError(
                f"{root.log} begins at offset {root.log_start} in its tier: it cannot be cut at {offset}"
            )
        return Change(
            kind=ChangeKind.TRUNCATE,
            reason=reason,
            log_start=root.log_start,
            high_watermark=root.high_watermark,
            first_dirty_offset=min(root.first_dirty_offset, offset),
            kept_end=offset if offset > root.log_start else root.start_offset,
        )

    return decide


def _adding(stored: StoredSegment, at: LogBounds) -> Decide:
    """Return a decision to append an entry, unless the tier has it already."""

    def decide(root: Root | None) -> Change | None:
        if _is_covered(root, stored.info, at):
            return None
        _check_joins(root, stored.info, at)
        log_start = max(at.log_start, root.log_start if root else 0)
        return Change(
            kind=ChangeKind.OFFLOAD,
            reason=f"segment [{stored.info.base_offset}, {stored.info.end_offset})",
            added=(stored,),
            log_start=log_start,
            high_watermark=max(at.high_watermark, root.high_watermark if root else 0),
            first_dirty_offset=root.first_dirty_offset if root else 0,
            topic=at.topic,
        )

    return decide


def _is_covered(root: Root | None, info: SegmentInfo, at: LogBounds) -> bool:
    """Return True if the tier has the whole segment; offsets below the log start are not needed."""
    if root is not None and root.segments and info.base_offset < root.end_offset:
        _check_lineage(root, info)
    return info.end_offset <= max(at.log_start, root.end_offset if root else 0)


def _check_lineage(root: Root, info: SegmentInfo) -> None:
    """Raise if leader epochs show that the tier has other records at the segment's offsets.

    Two leaders can have written different records at the same offsets. A segment must not be skipped if the tier has
    the records of the other leader.
    """
    start, end = max(info.base_offset, root.start_offset), min(info.end_offset, root.end_offset)
    offset = first_divergence(info.leader_epochs, root.leader_epochs, start, end)
    if offset is not None:
        raise parted_error(info.log, offset, info.leader_epochs, root.leader_epochs)


def parted_error(
    log: TopicPartition, offset: int, ours: Sequence[EpochEntry], theirs: Sequence[EpochEntry]
) -> StorageError:
    """Return the error for the leader of a log whose tier has other records from ``offset`` on."""
    return StorageError(
        f"{log} and its tier have different records from offset {offset} on: leader epoch {EpochCache(ours).at(offset)} "
        f"here, {EpochCache(theirs).at(offset)} there; attach again to go on with what the tier has, or set "
        "unclean.leader.election.enable=true to cut it off there and lose that"
    )


def _check_joins(root: Root | None, info: SegmentInfo, at: LogBounds) -> None:
    """Raise unless the segment begins where the tier ends."""
    span = f"segment [{info.base_offset}, {info.end_offset}) of {info.log}"
    if info.end_offset > at.high_watermark:
        raise StorageError(f"{span} reaches past the high watermark {at.high_watermark}: it is not offloaded")
    log_start = max(at.log_start, root.log_start if root else 0)
    end = root.end_offset if root else log_start
    if end > log_start and info.base_offset != end:
        advice = (
            "roll the log there, or attach again"
            if info.base_offset < end
            else f"bring its newest state back, or give up what is between with delete_records({info.base_offset})"
        )
        raise StorageError(f"{span} does not go on where the tier ends, at {end}: {advice}")
    if end <= log_start < info.base_offset:
        raise StorageError(f"{span} leaves a gap behind the log start {log_start}")
