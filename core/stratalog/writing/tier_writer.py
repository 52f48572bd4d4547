"""Bulk writes to a tier: tasks build and upload segments, and one new root for each log makes them part of the log.

If the caller gives no offsets, a task assigns offsets from the tier's end on. These offsets are correct if no other
task or writer appends to the log before the commit. At the commit, segments whose offsets follow the log's end are
published unchanged. The other segments are copied with new offsets, into segments as large as the topic's settings
allow, and the originals are deleted. If the caller gives the offsets, nothing is copied: segments that do not follow
the log's end are refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from stratalog.errors import FencedEpochError, LogInUseError, OffsetsOutOfOrderError, StorageError
from stratalog.model.names import TopicId, TopicPartition
from stratalog.segment.framing import walk
from stratalog.spi.layouts import StoredSegment
from stratalog.tier.commit.append_change import Appending, EndMovedError, check_single_writer, is_unused
from stratalog.tier.manifest.root import Root, TopicNote, WriteMark
from stratalog.tier.read.remote_segment import RemoteSegment
from stratalog.tier.tier_log import TierLog
from stratalog.writing.stage import Stage
from stratalog.writing.staged import Published, StagedSegment
from stratalog.writing.tier_jobs import TierRewriter, published
from stratalog.writing.tier_target import TierTarget, entries_of

_TRIES: Final = 8  # attempts at one commit while others append to the log
_TIDY_EVERY: Final = 64  # versions of the manifest between two collections


class TierWriter(TierRewriter):
    """A ``BulkWriter`` for a tier. Created by ``TierWriter.open``."""

    # --- staging -------------------------------------------------------------------------------------------------

    def stage(self, log: TopicPartition, *, base_offset: int | None = None, compression: str | None = None) -> Stage:
        """Begin to stage records in objects of the tier, as ``BulkWriter.stage``."""
        self._topics.get(log.topic)
        target = self._target(self._topics.listed(log), compression, keep_offsets=base_offset is not None)
        root = target.remote.root
        end = root.end_offset if root is not None else 0
        start = end if base_offset is None else base_offset
        return Stage(target, start, keep_offsets=base_offset is not None)

    # --- publishing ----------------------------------------------------------------------------------------------

    def append(
        self,
        log: TopicPartition,
        staged: Sequence[StagedSegment],
        mark: WriteMark | None = None,
        *,
        keep_offsets: bool = False,
    ) -> Published:
        """Publish staged records at the log's end, as ``BulkWriter.append``."""
        return self._append(self._remote(log), staged, mark, keep_offsets=keep_offsets)

    def append_all(
        self, staged: Mapping[TopicPartition, Sequence[StagedSegment]], mark: WriteMark | None = None
    ) -> list[Published | Exception]:
        """Publish staged records of several logs in parallel, as ``BulkWriter.append_all``."""
        self._topics.forget()
        for topic in {log.topic for log in staged}:
            self._topics.get(topic)

        def work(found: tuple[TopicPartition, Sequence[StagedSegment]]) -> Published:
            return self._append(self._topics.listed(found[0]), found[1], mark)

        return self._in_parallel(list(staged.items()), work, "stratalog-append")

    def _append(
        self,
        remote: TierLog,
        staged: Sequence[StagedSegment],
        mark: WriteMark | None,
        *,
        keep_offsets: bool = False,
    ) -> Published:
        log, entries = remote.name, entries_of(staged)
        for _ in range(_TRIES):
            root = remote.root
            if mark is not None and root is not None and root.number_of(mark.writer) >= mark.number:
                remote.discard(entries)
                return Published(log, root.end_offset, root.end_offset, 0, 0, duplicate=True)
            if not entries:
                end = root.end_offset if root is not None else 0
                return Published(log, end, end, 0, 0)
            target = self._target(remote)
            _check_staged_for(staged, target)
            start = _start(root, entries, keep_offsets=keep_offsets)
            placed = self._placed(target, staged, start, keep_offsets=keep_offsets)
            copies = [entry for entry in placed if entry not in entries]
            remote.check_stored(entry for entry in placed if entry in entries)
            wanted = Appending(entries=tuple(placed), log_start=start, mark=mark, topic=self._note(root, log.topic))
            try:
                head = target.publisher.add(wanted)
            except (EndMovedError, FencedEpochError) as error:
                remote.discard(copies)
                if isinstance(error, FencedEpochError):
                    raise
                remote.refresh()
                continue
            named = remote.entries(start, placed[0].info.end_offset, head) if mark is not None else placed
            if placed[0].log_key not in {entry.log_key for entry in named}:
                remote.discard(copies)  # another process published this mark at the same time
                continue
            with contextlib.suppress(StorageError):  # the records are published; an error would ask for a repetition
                remote.discard([entry for entry in entries if entry not in placed])
            self._tidy(remote)
            return published(log, placed, start)
        raise StorageError(f"other writers appended to {log} {_TRIES} times during the publication: try again")

    def _tidy(self, remote: TierLog) -> None:
        """Delete old roots after every 64th version, because no engine collects a log that only bulk writers write."""
        root = remote.root
        if root is not None and root.version % _TIDY_EVERY == 0:
            history_ms = self._host.settings.engine.tier_history_ms
            with contextlib.suppress(StorageError):  # a later append repeats the collection
                remote.collect(history_ms=history_ms, with_orphans=False)

    def _note(self, root: Root | None, topic: str) -> TopicNote | None:
        """Return the description of the topic to store in the first root of a log, or None if the log has a root."""
        found = self._topics.get(topic)
        return TopicNote(found.partitions, found.note.config if found.note else {}) if root is None else None

    def _placed(
        self, target: TierTarget, staged: Sequence[StagedSegment], start: int, *, keep_offsets: bool
    ) -> list[StoredSegment]:
        """Return the manifest entries to publish, with their final offsets from ``start`` on.

        The staged segments that follow ``start`` without a gap are published; the others are copied with new offsets.

        Raises:
            OffsetsOutOfOrderError: with ``keep_offsets``, the segments leave a gap or overlap.
        """
        placed, at = list[StoredSegment](), start
        entries = entries_of(staged)
        while len(placed) < len(entries) and entries[len(placed)].info.base_offset == at:
            placed.append(entries[len(placed)])
            at = placed[-1].info.end_offset
        left = entries[len(placed) :]
        if not left:
            return placed
        if keep_offsets:
            raise OffsetsOutOfOrderError(
                f"{target.remote.name} ends at {at}, but the staged records with fixed offsets begin at "
                f"{left[0].info.base_offset}"
            )
        with Stage(target, at, keep_offsets=False) as stage:
            for entry in left:
                for data in _batches(target, entry):
                    stage.add_encoded(data)
            return [*placed, *entries_of(stage.finish())]

    def discard(self, staged: Iterable[StagedSegment]) -> None:
        """Remove staged objects, as ``BulkWriter.discard``, but not for a log whose last commit an engine made.

        Objects of segments that were published stay, even if a merge has replaced the segments since.
        With ``take_over``, objects that were staged to take over the log from that engine are removed, too.
        """
        by_log: dict[tuple[TopicPartition, TopicId], list[StagedSegment]] = {}
        for found in staged:
            by_log.setdefault((found.log, found.topic_id), []).append(found)
        for name, group in by_log.items():
            remote = self._tier.log(*name)
            remote.refresh()
            root, staged_epoch = remote.root, max(found.leader_epoch for found in group)
            # an engine that began after the records were staged is not fenced
            take_over = self._take_over and root is not None and root.leader_epoch < staged_epoch
            # an engine made the last commit to the log: the objects stay
            with contextlib.suppress(FencedEpochError):
                remote.cancel_pending_commits(leader_epoch=check_single_writer(root, take_over=take_over))
                remote.discard(entries_of(group))


def _check_staged_for(staged: Sequence[StagedSegment], target: TierTarget) -> None:
    """Raise an error unless the segments were staged for the topic of ``target`` in its leader epoch."""
    for found in staged:
        if found.topic_id != target.remote.topic_id:
            raise StorageError(
                f"topic {found.log.topic} was deleted and created again after records of {found.log} were staged: the "
                "staged records are not published"
            )
        if found.leader_epoch != target.leader_epoch:
            raise LogInUseError(
                f"{found.log} was staged in leader epoch {found.leader_epoch}, which is now {target.leader_epoch}: the "
                "staged records are not published"
            )


def _start(root: Root | None, entries: Sequence[StoredSegment], *, keep_offsets: bool) -> int:
    """Return the offset where the appended records begin: the log end; in a new log the first kept offset, or 0."""
    if root is None or is_unused(root):
        return entries[0].info.base_offset if keep_offsets else 0
    return root.end_offset


def _batches(target: TierTarget, entry: StoredSegment) -> Iterator[bytearray]:
    """Yield all batches of a segment in the tier, in pieces of whole batches, and check their CRCs."""
    segment = RemoteSegment(entry, target.remote.fetcher)
    for chunk in walk(segment, 0, target.encoder.components):
        first, last = chunk.tables[0], chunk.tables[-1]
        yield bytearray(chunk.data[first.position[0] : last.position[-1] + last.size_bytes[-1]])
