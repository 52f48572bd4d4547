"""One log in a tier: reads, and operations that change it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial

from stratalog.errors import FencedEpochError, StorageError
from stratalog.model.names import TopicId, TopicPartition
from stratalog.model.offsets import next_epoch
from stratalog.spi.layouts import SegmentSource, StoredSegment
from stratalog.spi.providers import Section
from stratalog.tier.commit.append_change import LogBounds, create_change, is_unknown
from stratalog.tier.commit.committer import Committer, Decide
from stratalog.tier.commit.trim_change import (
    ExpireReport,
    empty_change,
    epoch_change,
    expire_change,
    recompact_change,
    truncate_change,
)
from stratalog.tier.manifest.entry_tree import leaves
from stratalog.tier.manifest.root import BULK, Change, ChangeKind, Root, TopicNote, object_keys
from stratalog.tier.store.object_keys import parse_segment_key, segments_prefix, upload_time_ms
from stratalog.tier.tier_log_reader import TierComponents, TierLogReader
from stratalog.tier.upkeep.collect import GRACE_MS, Collector, CollectReport, Owner
from stratalog.tier.upkeep.key_rotation import Rewrapping, RewrapReport, mac_change, spans
from stratalog.tier.upkeep.manifest_rebuild import rebuild_change
from stratalog.tier.upload.uploader import OffloadReport, SegmentUploader
from stratalog.tier.upload.uploads import Uploads


class TierLog(TierLogReader):
    """One log in a tier, for reads and changes; implements ``RemoteLog``. Thread-safe. ``Tier.log`` creates it.

    One commit or refresh runs at a time. Uploads and collections do not block commits and refreshes. A TierLog need not
    be closed.

    Attributes:
        uploads: keys of objects whose upload or commit is in progress in this process.
        See ``TierLogReader`` for the other attributes.
    """

    def __init__(self, log: TopicPartition, topic_id: TopicId, components: TierComponents) -> None:
        super().__init__(log, topic_id, components)
        self._duty_lock = threading.Lock()  # for one offload or collection at a time; acquired before _lock
        self._committer = Committer(
            self.objects,
            self._finder,
            self.pages,
            self.components.env,
            limit_bytes=self.components.limits.manifest_bytes,
            shared=self.availability.shared,
        )
        self.uploads = Uploads()

    @property
    def is_settled(self) -> bool:
        """True if no earlier commit attempt of this process can still take effect; False in the assumed state."""
        if self.is_assumed:
            return False
        root = self.root
        return (0 if root is None else root.version) >= self._committer.tried_version

    def rejoin(self) -> Root | None:
        """Call ``TierLogReader.rejoin``, and use single-writer mode for later commits if the store now requires it."""
        root = super().rejoin()
        self._committer.shared = self.availability.shared
        return root

    # --- for the publishers and duties of the log --------------------------------------------------------------------

    @contextlib.contextmanager
    def duty(self) -> Iterator[None]:
        """Return a context in which no other thread offloads, collects, claims, truncates or appends to the log.

        Such operations wait until the ``with`` block ends. ``commit``, ``expire``, ``recompact``, ``clear`` and
        ``delete`` do not wait.
        """
        with self._duty_lock:
            yield

    def uploader(self, layout: str, section: Section | None) -> SegmentUploader:
        """Return an uploader that writes with ``layout``; ``section`` has the topic's settings for it, or is None."""
        label, guarded_layout = self.fetcher.layouts.label(layout), self.fetcher.layouts.by_name(layout)
        return SegmentUploader(
            self.objects, self.components.env, label, guarded_layout, section, self.commit, self.uploads
        )

    def commit(self, leader_epoch: int, decide: Decide, shared_with: Collection[str] = ()) -> Root | None:
        """Call ``Committer.commit``; afterwards, ``view`` returns the new state."""
        with self._lock:
            root = self._committer.commit(leader_epoch, decide, shared_with)
            self._adopt(root)
            return root

    def discard(self, entries: Iterable[StoredSegment]) -> None:
        """Delete the objects of segments that were uploaded but not committed, except objects that a root names.

        The collector deletes objects that a root names later, when readers of older roots no longer need them. If an
        object cannot be deleted now, a later ``collect`` deletes it.
        """
        self.check_writable()
        entries = list(entries)
        if not entries:
            return
        named_keys = self._find_named_keys(entries)
        for entry in entries:
            self.uploads.end_deleted(entry.keys, self.objects.delete(sorted(entry.keys - named_keys)))

    def _find_named_keys(self, entries: Sequence[StoredSegment]) -> set[str]:
        """Return object keys that existing roots name: all such keys of ``entries``, and some keys of other segments.

        A commit can succeed although its writer gets an error. A merge may then have replaced the segment, so older
        roots are read, too.
        """
        start, end = min(entry.info.base_offset for entry in entries), max(entry.info.end_offset for entry in entries)
        own_keys, named_keys, read_pages = object_keys(entries), set[str](), set[str]()
        since_ms = min(upload_time_ms(key) or 0 for key in own_keys) - GRACE_MS  # clocks of writers differ by less
        for root in self.history():
            if own_keys <= named_keys or root.end_offset <= start or root.created_ms < since_ms:
                break  # an older root names no other object of the segments
            named_keys |= object_keys(root.entries)
            for ref in leaves(root.pages, self.pages, start):
                if ref.base_offset < end and ref.sha256 not in read_pages:  # adjacent roots share most pages
                    named_keys |= object_keys(self.pages.entries(ref))
                    read_pages.add(ref.sha256)
        return named_keys

    # --- offload and trims -------------------------------------------------------------------------------------------

    def offload(
        self,
        sources: Iterable[SegmentSource],
        *,
        layout: str,
        leader_epoch: int,
        log_start: int,
        high_watermark: int,
        section: Section | None = None,
        topic: TopicNote | None = None,
    ) -> OffloadReport:
        """Copy closed segments to the tier, in order, and commit each one before the next is uploaded.

        Args:
            sources: the segments, ascending, durable and below the high watermark. Consumed one by one.
            layout: name of the layout to write with.
            leader_epoch: leader epoch of the log; a commit in it fences writers of lower epochs.
            log_start: the log start offset, committed with each segment.
            high_watermark: the log's high watermark, committed with each segment.
            section: the topic's settings for the layout; None if there are none.
            topic: number of partitions and settings of the topic, for readers of the tier alone; committed with each
                segment.

        Raises:
            StorageError: a segment does not continue the tier (see ``SegmentUploader.offload``), or the manifest is
                lost: the log has no root, but the tier has segments of the log below ``log_start``.
            StoreError: the store failed; call again with the same segments.
        """
        self.check_writable()
        bounds = LogBounds(leader_epoch, log_start, high_watermark, topic)
        with self._duty_lock:
            self.refresh()
            self.check_not_lost(log_start)
            head = self.commit(leader_epoch, lambda _: None)  # raises for a fenced writer, before it uploads anything
            return self.uploader(layout, section).offload(head, sources, bounds)

    def create(
        self, *, leader_epoch: int, log_start: int, high_watermark: int, topic: TopicNote | None = None
    ) -> Root | None:
        """Commit a root without segments unless the tier lists the log; return the latest root.

        The tier does not list a log that has no root, or whose latest root was made by ``clear``. See ``offload`` for
        the arguments.
        """
        self.check_writable()
        if not is_unknown(self.root):
            return self.root
        self.check_not_lost(log_start)
        with self._duty_lock:
            bounds = LogBounds(leader_epoch, log_start, high_watermark, topic)
            return self.commit(leader_epoch, lambda root: create_change(root, bounds))

    def rewrap(self) -> RewrapReport:
        """Encrypt the data keys of all segments with the active key; return a report of checked and changed segments.

        At the end the latest root has a MAC of the active key, if the layout authenticates roots. After an
        interruption, another call continues.
        """
        self.check_writable()
        with self._duty_lock:
            self.refresh()
            root, total = self.root, RewrapReport()
            if root is None:
                return total
            for start, end in spans(root, self.pages):
                rewrapping = Rewrapping(self.fetcher.layouts, self.objects, partial(self.entries, start, end))
                self.commit(root.leader_epoch, rewrapping.decide, set(ChangeKind))
                report = rewrapping.report
                total = RewrapReport(total.segments + report.segments, total.rewrapped + report.rewrapped)
            if self.root is not None and self.components.authenticity.is_due(self.root):
                self.commit(root.leader_epoch, mac_change, set(ChangeKind))
            return total

    def cancel_pending_commits(self, *, leader_epoch: int) -> None:
        """Commit an empty change, after which earlier commit attempts of this process can no longer take effect.

        Call this if it is unknown whether a failed commit has created its root, and the commit will not be retried. If
        the log has no root, the call does nothing.
        """
        self.check_writable()
        with self._duty_lock:
            self.commit(leader_epoch, empty_change, BULK)

    def claim(self, reason: str) -> Root | None:
        """Begin the next leader epoch, which fences the previous writer; return the new root.

        If the log has no root, do nothing and return None. If the topic was deleted or left the tier, do nothing and
        return the latest root. ``reason`` is text for people, stored in the root.

        Raises:
            FencedEpochError: another writer claimed the epoch at the same time.
            EpochsExhaustedError: there is no next epoch.
        """
        self.check_writable()
        with self._duty_lock:
            self.refresh()
            root = self.root
            if root is None:
                return None
            return self.commit(next_epoch(root.leader_epoch, self.name), lambda latest: epoch_change(latest, reason))

    def add_rebuilt(
        self, entries: tuple[StoredSegment, ...], log_start: int, end_offset: int, *, leader_epoch: int
    ) -> None:
        """Commit the next entries of a rebuilt manifest, except entries that the manifest already has.

        ``log_start`` and ``end_offset`` are the bounds of the complete manifest.
        """
        self.check_writable()
        with self._duty_lock:
            self.commit(leader_epoch, lambda root: rebuild_change(root, entries, log_start, end_offset))

    def expire(self, log_start: int, *, leader_epoch: int, reason: str) -> ExpireReport:
        """Increase the log start, and remove the segments below it from the tier, in one commit.

        Return the number and bytes of the removed segments, and the committed log start. ``collect`` deletes the
        objects later.
        """
        return self._expire(ChangeKind.EXPIRE, log_start, leader_epoch, reason)

    def recompact(self, *, leader_epoch: int, reason: str) -> None:
        """Commit a root after which no offset of the log counts as compacted. Called if a cleanup policy was added."""
        self.check_writable()
        self.commit(leader_epoch, lambda root: recompact_change(root, reason))

    def cut_back(self, offset: int, *, leader_epoch: int, reason: str) -> None:
        """Remove the segments from ``offset`` on, in one commit, because another leader wrote them.

        ``offset`` must be the end offset of a segment, or the log start. If the end offset of the tier is at
        or below ``offset``, do nothing.

        Raises:
            StorageError: ``offset`` is below the log start or inside a segment.
        """
        self.check_writable()
        with self._duty_lock:
            self.commit(leader_epoch, lambda root: truncate_change(root, offset, reason))

    def clear(self, log_start: int, *, leader_epoch: int, reason: str) -> ExpireReport:
        """Set the log start, and remove all segments because the topic no longer uses the tier.

        Return the number and bytes of the segments.
        """
        return self._expire(ChangeKind.CLEAR, log_start, leader_epoch, reason)

    def delete(self, *, leader_epoch: int, reason: str) -> ExpireReport:
        """Remove all segments because the topic was deleted; return their number and bytes.

        After the grace time ``collect`` also deletes the roots.
        """
        return self._expire(ChangeKind.DELETE, self.view().end_offset, leader_epoch, reason)

    def collect(
        self,
        *,
        grace_ms: int = GRACE_MS,
        history_ms: int = 0,
        with_orphans: bool = True,
        leader_epoch: int | None = None,
    ) -> CollectReport:
        """Delete superseded roots, and objects that no remaining root names, if they are older than the grace time.

        Only the leader of the log passes ``leader_epoch``, the leader epoch of the log. Then the call also deletes
        objects that earlier processes left in that epoch. See ``Collector`` for the other arguments.
        """
        self.check_writable()
        with self._duty_lock:
            if leader_epoch is not None:
                # First accept rewrapped roots: without them, the head would look like the root of a second writer.
                with contextlib.suppress(FencedEpochError):  # the next commit raises it
                    self.commit(leader_epoch, lambda _: None)
            if with_orphans:
                self.uploads.begin_search()
            finder = self.new_finder()  # its own finder: a collection begins with a listing, and must not block commits
            return Collector(
                self.objects,
                finder,
                self.pages,
                self.components.env.clock,
                grace_ms=grace_ms,
                history_ms=history_ms,
                with_orphans=with_orphans,
                owner=None if leader_epoch is None else Owner(leader_epoch, self.uploads, self._fence),
            ).collect()

    @property
    def has_leftovers(self) -> bool:
        """True if this process may have left objects without a commit since the last ``collect`` with orphans."""
        return self.uploads.has_left

    @contextlib.contextmanager
    def _fence(self, leader_epoch: int) -> Iterator[Root | None]:
        """Commit a root, and block other commits of this process until the ``with`` block ends (``Owner.fence``)."""
        with self._lock:
            yield self.commit(
                leader_epoch, lambda latest: epoch_change(latest, "objects that were never committed are deleted")
            )

    def check_not_lost(self, log_start: int | None = None) -> None:
        """Raise StorageError if there is no root, but there are segments below ``log_start``: the manifest is lost.

        If ``log_start`` is None, segments at any offset cause the error. If a new manifest began at ``log_start``, the
        collector would delete the segments.
        """
        if self.root is not None or log_start == 0:
            return
        infos = self.objects.list(segments_prefix(self.prefix), limit=1)
        lowest = parse_segment_key(self.prefix, infos[0].key) if infos else None
        if lowest is None or (log_start is not None and lowest.base_offset >= log_start):
            return
        self.refresh()  # another writer may have created the log since the root was read
        if self.root is None:
            raise StorageError(
                f"the manifest of {self.name} in {self.objects.uri} is lost, but the tier has segments from offset "
                f"{lowest.base_offset} on: stop all writers, and run `stratalog rebuild {self.objects.uri}`"
            )

    def _expire(self, kind: ChangeKind, log_start: int, leader_epoch: int, reason: str) -> ExpireReport:
        """Commit ``expire_change``, and return a report of the segments that the commit removed."""
        self.check_writable()
        before: Root | None = None

        def decide(root: Root | None) -> Change | None:
            nonlocal before
            before = root
            return expire_change(root, kind, log_start, reason)

        head = self.commit(leader_epoch, decide)
        if head is None or before is None:
            return ExpireReport(0)
        return ExpireReport(head.log_start, before.segments - head.segments, before.size_bytes - head.size_bytes)
