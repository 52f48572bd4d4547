"""Publication of segments of one log in a tier: upload of the objects, then one manifest root that names all of them.

One commit publishes all segments of a call, or none. The collector deletes replaced objects later, so readers of older
roots can finish.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from stratalog.config.topic import TopicConfig
from stratalog.segment.build import BuiltSegment
from stratalog.spi.layouts import SegmentSource, StoredSegment
from stratalog.tier.commit.append_change import Appending
from stratalog.tier.commit.replace_change import Replacing, SegmentSwap, SwapDecision
from stratalog.tier.commit.trim_change import epoch_change
from stratalog.tier.manifest.root import BULK, PAGE_ITEMS, Change, ChangeKind, Root
from stratalog.tier.tier_log import TierLog
from stratalog.tier.upload.segment_source import SegmentFacts, built_source

MOST_SWAPS: Final = PAGE_ITEMS
"""Maximum number of swaps in one commit.

A larger change would need more memory, and more repeated work after a crash.
"""


class TierPublisher:
    """Publisher of segments of one log in one leader epoch. Its commits fence writers of lower epochs.

    Several threads may upload at the same time. Only one thread at a time may call the other methods.
    """

    def __init__(self, log: TierLog, leader_epoch: int, config: TopicConfig) -> None:
        log.check_writable()
        self.log, self.leader_epoch, self._config = log, leader_epoch, config

    def claim(self) -> None:
        """Begin the publisher's leader epoch in the tier, which fences writers of lower epochs.

        Commit nothing if the epoch has already begun, if the log has no root, or if the latest root is from CLEAR.

        Raises:
            FencedEpochError: another writer owns the log, so uploaded segments could not be committed.
            UnknownTopicError: the topic was deleted.
        """

        def decide(root: Root | None) -> Change | None:
            is_new = root is not None and root.leader_epoch < self.leader_epoch
            return epoch_change(root, "a new leader epoch begins") if is_new else None

        self.log.commit(self.leader_epoch, decide)

    def upload(self, source: SegmentSource) -> StoredSegment:
        """Store a segment under new keys, and return its manifest entry. Readers see the segment after its commit."""
        layout = self._config.tier_layout
        return self.log.uploader(layout, self._config.sections.get(layout)).upload(source, self.leader_epoch)

    def upload_built(self, segment: BuiltSegment, facts: SegmentFacts) -> StoredSegment:
        """Upload a built segment like ``upload``, and remove its local files, even after an error."""
        try:
            return self.upload(built_source(segment, self.log.name, self.log.topic_id, facts, self._config))
        finally:
            segment.discard()

    def add(self, appending: Appending) -> Root | None:
        """Append stored segments at the log's end in one commit; return the latest root afterwards.

        If an earlier call with the same ``appending.mark``, or with a higher mark of the writer, succeeded, commit
        nothing.

        Raises:
            EndMovedError: the log's end offset has changed; nothing was committed.
        """
        with self.log.duty():
            head = self.log.commit(self.leader_epoch, appending.decide, BULK)
        self._end_uploads(appending.entries)
        return head

    def replace_planned(self, replacing: Replacing) -> None:
        """Replace segments by others that are stored, in one commit.

        Raises:
            StorageError: the segments have changed since the plan was made, or the new ones do not cover the same
                offsets; nothing was committed.
        """

        def decide(root: Root | None) -> Change | None:
            return replacing.change(root, self.log.entries(*replacing.span, root))

        with self.log.duty():
            self.log.commit(self.leader_epoch, decide, BULK)
        self._end_uploads(replacing.entries)

    def swap(
        self, swaps: Sequence[SegmentSwap], kind: ChangeKind, reason: str, *, first_dirty_offset: int | None = None
    ) -> tuple[SegmentSwap, ...]:
        """Replace segments in one commit, and return the swaps that were made.

        If the log no longer has the old segments of a swap, the objects of its new segment are deleted instead.

        Args:
            swaps: the swaps, ascending; at most ``MOST_SWAPS``.
            kind: kind of the change, for the new root.
            reason: text for people.
            first_dirty_offset: first offset that is not compacted afterwards; see ``SwapDecision``.

        Raises:
            FencedEpochError: another writer owns the log; the collector deletes the uploaded objects later.
            StoreTimeoutError: it is unknown if the swaps were committed; ``refresh`` the log to find out.
        """
        decision = SwapDecision(swaps, kind, reason, first_dirty_offset, self.log.pages)
        try:
            self.log.commit(self.leader_epoch, decision.decide)
        except BaseException:
            self.log.uploads.leave(key for swap in swaps for key in swap.new.keys)
            raise
        self._end_uploads(swap.new for swap in decision.placed)
        self.discard([swap.new for swap in swaps if swap not in decision.placed])
        return decision.placed

    def discard(self, entries: Iterable[StoredSegment]) -> None:
        """Delete the objects of segments that this publisher uploaded and that no commit names or will name.

        If an object cannot be deleted now, the collector deletes it later.
        """
        keys = {key for entry in entries for key in entry.keys}
        self.log.uploads.end_deleted(keys, self.log.objects.delete(sorted(keys)))

    def _end_uploads(self, entries: Iterable[StoredSegment]) -> None:
        self.log.uploads.end(key for entry in entries for key in entry.keys)
