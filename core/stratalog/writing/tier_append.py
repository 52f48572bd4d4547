"""Publication of staged records at the end of a log in a tier."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

from stratalog.errors import FencedEpochError, LogInUseError, OffsetsOutOfOrderError, StorageError
from stratalog.segment.framing import walk
from stratalog.spi.layouts import StoredSegment
from stratalog.tier.commit.append_change import Appending, EndMovedError, is_unused
from stratalog.tier.manifest.root import Root, TopicNote, WriteMark
from stratalog.tier.read.remote_segment import RemoteSegment
from stratalog.tier.tier_log import TierLog
from stratalog.writing.stage import Stage
from stratalog.writing.staged import Published, StagedSegment
from stratalog.writing.tier_access import TierAccess
from stratalog.writing.tier_target import TierTarget, commit_result, entries_of

_TRIES: Final = 8  # attempts at one commit while others append to the log
_TIDY_EVERY: Final = 64  # versions of the manifest between two collections


class TierAppend:
    """One publication of staged records at the end of a log in a tier.

    Args:
        remote: the log, in its newest state.
        mark: progress of a writer that numbers its writes; None for other writers.
        keep_offsets: True to refuse segments that do not follow the log's end; False to copy them with new offsets.
    """

    def __init__(
        self,
        access: TierAccess,
        remote: TierLog,
        staged: Sequence[StagedSegment],
        mark: WriteMark | None,
        *,
        keep_offsets: bool = False,
    ) -> None:
        self._access, self._remote, self._staged, self._entries = access, remote, staged, entries_of(staged)
        self._mark, self._keep_offsets = mark, keep_offsets

    def run(self) -> Published:
        """Publish the records; see ``BulkWriter.append``."""
        log, mark = self._remote.name, self._mark
        for _ in range(_TRIES):
            root = self._remote.root
            if mark is not None and root is not None and root.number_of(mark.writer) >= mark.number:
                self._remote.discard(self._entries)
                return Published(log, root.end_offset, root.end_offset, 0, 0, duplicate=True)
            if not self._entries:
                end = root.end_offset if root is not None else 0
                return Published(log, end, end, 0, 0)
            result = self._attempt(root)
            if result is not None:
                self._tidy()
                return result
        raise StorageError(f"other writers appended to {log} {_TRIES} times during the publication: try again")

    def _attempt(self, root: Root | None) -> Published | None:
        """Publish the records after ``root``, the latest root; return None if another writer appended meanwhile."""
        remote, entries = self._remote, self._entries
        target = self._access.target(remote)
        _check_staged(self._staged, target)
        start = self._first_offset(root)
        final_entries = self._place_entries(target, start)
        copies = [entry for entry in final_entries if entry not in entries]
        remote.check_stored(entry for entry in final_entries if entry in entries)
        appending = Appending(
            entries=tuple(final_entries), log_start=start, mark=self._mark, topic=self._first_note(root)
        )
        try:
            head = target.publisher.add(appending)
        except FencedEpochError:
            remote.discard(copies)
            raise
        except EndMovedError:
            remote.discard(copies)
            remote.refresh()
            return None
        head_entries = (
            remote.entries(start, final_entries[0].info.end_offset, head) if self._mark is not None else final_entries
        )
        if final_entries[0].log_key not in {entry.log_key for entry in head_entries}:
            remote.discard(copies)  # another process published this mark at the same time
            return None
        with suppress(StorageError):  # the records are published; after an error, the caller would repeat the call
            remote.discard([entry for entry in entries if entry not in final_entries])
        return commit_result(remote.name, final_entries, start)

    def _first_offset(self, root: Root | None) -> int:
        """Return the offset where the records begin: the log end; in a new log, the first kept offset or 0."""
        if root is None or is_unused(root):
            return self._entries[0].info.base_offset if self._keep_offsets else 0
        return root.end_offset

    def _first_note(self, root: Root | None) -> TopicNote | None:
        """Return the description of the topic to store in the first root of a log, or None if the log has a root."""
        topic = self._access.topics.get(self._remote.name.topic)
        return TopicNote(topic.partitions, topic.note.config if topic.note else {}) if root is None else None

    def _place_entries(self, target: TierTarget, start: int) -> list[StoredSegment]:
        """Return the manifest entries to publish, with their final offsets from ``start`` on.

        The staged segments that follow ``start`` without a gap are published; the others are copied with new offsets.

        Raises:
            OffsetsOutOfOrderError: the offsets must be kept, but the segments leave a gap or overlap.
        """
        final_entries, next_offset = list[StoredSegment](), start
        for entry in self._entries:
            if entry.info.base_offset != next_offset:
                break
            final_entries.append(entry)
            next_offset = entry.info.end_offset
        remaining = self._entries[len(final_entries) :]
        if not remaining:
            return final_entries
        if self._keep_offsets:
            raise OffsetsOutOfOrderError(
                f"{target.remote.name} ends at {next_offset}, but the staged records with fixed offsets begin at "
                f"{remaining[0].info.base_offset}"
            )
        with Stage(target, next_offset, keep_offsets=False) as stage:
            for entry in remaining:
                for data in _read_batches(target, entry):
                    stage.add_encoded(data)
            return [*final_entries, *entries_of(stage.finish())]

    def _tidy(self) -> None:
        """Delete old roots after every 64th version, because no engine collects a log that only bulk writers write."""
        root = self._remote.root
        if root is not None and root.version % _TIDY_EVERY == 0:
            history_ms = self._access.host.settings.engine.tier_history_ms
            with suppress(StorageError):  # a later append repeats the collection
                self._remote.collect(history_ms=history_ms, with_orphans=False)


def _check_staged(staged: Sequence[StagedSegment], target: TierTarget) -> None:
    """Raise an error unless the segments were staged for the topic of ``target`` in its leader epoch."""
    for segment in staged:
        if segment.topic_id != target.remote.topic_id:
            raise StorageError(
                f"topic {segment.log.topic} was deleted and created again after records of {segment.log} were staged: the "
                "staged records are not published"
            )
        if segment.leader_epoch != target.leader_epoch:
            raise LogInUseError(
                f"{segment.log} was staged in leader epoch {segment.leader_epoch}, which is now {target.leader_epoch}: the "
                "staged records are not published"
            )


def _read_batches(target: TierTarget, entry: StoredSegment) -> Iterator[bytearray]:
    """Yield all batches of a segment in the tier, in pieces of whole batches, and check their CRCs."""
    segment = RemoteSegment(entry, target.remote.fetcher)
    for chunk in walk(segment, 0, target.encoder.components):
        first, last = chunk.tables[0], chunk.tables[-1]
        yield bytearray(chunk.data[first.position[0] : last.position[-1] + last.size_bytes[-1]])
