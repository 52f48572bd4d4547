"""Loading of a log's folder: its live segments, its log end offset, and the state of its producers.

An engine and a reader use the same passes. An engine repairs the damage that a crash left. A reader computes the result
of such a repair in memory and writes nothing.

Source: apache/kafka LogLoader, UnifiedLog.rebuildProducerState.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack

from stratalog.config.topic import TopicConfig
from stratalog.env.progress import Progress, counted, no_progress
from stratalog.errors import CorruptBatchError
from stratalog.log.folder.folder import (
    add_next_epoch,
    check_file_names,
    file_names,
    open_segments,
    read_epochs,
    set_aside,
    write_epochs_if_room,
    write_index_if_room,
)
from stratalog.log.folder.write_rounds import end_round
from stratalog.log.load.loaded_log import LoadedLog, LoadRequest
from stratalog.log.load.overflow import SegmentOverflow, find_closed_spans, pieces_of, spans_at, split_segment
from stratalog.log.load.producer_replay import (
    newest_snapshot,
    remove_stray_snapshots,
    replay_range,
    replay_table,
    snapshot_offsets,
    write_snapshot_if_room,
)
from stratalog.model.batches import BatchTable
from stratalog.model.names import LOG_SUFFIX, MARKS_FILE, NEXT_EPOCH_FILE, segment_file
from stratalog.model.segment_info import AbortedTransaction
from stratalog.producers.state import ProducerState
from stratalog.segment.components import Components
from stratalog.segment.file_chunks import check_same_bytes
from stratalog.segment.framing import Chunk, walk
from stratalog.segment.missing_index import missing_roles
from stratalog.segment.recover import ValidPart, scan_valid_part
from stratalog.segment.search import last_indexed_position
from stratalog.segment.segment import Segment
from stratalog.spi.indexes import IndexRole
from stratalog.spi.segment_store import LogFiles


def load(
    files: LogFiles,
    components: Components,
    config: TopicConfig,
    request: LoadRequest,
    progress: Progress = no_progress,
) -> LoadedLog:
    """Load a log from its folder. The caller closes the segments of the result.

    After an unclean stop, the segments with offsets from the recovery point on are checked. The log then ends before
    the first damaged batch in them; if ``writable``, the files are truncated there. Other damage of records raises no
    error: it is in ``LoadedLog.damage``. Several threads can load different logs at the same time.

    Raises:
        CorruptCheckpointError: a file of leader epochs or of write rounds is malformed.
        NotAFileError: a directory entry that is not a file has the name of a segment's file.
        LogDirError: a file cannot be read, or a repair cannot be written.
        UnknownComponentError, PluginError: the log is opened for writing, and the record format that the topic names is
            not installed or cannot be opened. The log is not opened, because recovery without this format would treat
            valid records as damaged, and truncate them.
    """
    if request.writable and isinstance(config.record_version, str):
        components.formats.for_version(config.record_version)
    stored_epochs = read_epochs(files)
    with ExitStack() as stack:
        names = check_file_names(files)
        segments = open_segments(files, components, stack, writable=request.writable, names=names)
        deleted_files = list[str]()
        while True:
            loaded_log = LoadedLog(
                segments=segments,
                producers=ProducerState(),
                epochs=stored_epochs,
                log_start=request.log_start or 0,
                log_end=0,
                has_start=request.log_start is not None,
                recovery_point=request.recovery_point,
                deleted_files=deleted_files,
                producer_expiration_ms=request.producer_expiration_ms,
            )
            loader = _Loader(files, components, config, request, names, progress, loaded_log)
            try:
                loader.run()
                break
            except SegmentOverflow as overflow:
                segment, spans = overflow.segment, overflow.spans
            if request.writable:
                deleted_files = [*loaded_log.deleted_files, *split_segment(segment, spans, config)]
                stack.close()
                names = file_names(files)
                segments = open_segments(files, components, stack, writable=True, names=names)
            else:
                index = segments.index(segment)
                segments[index : index + 1] = pieces_of(segment, spans, stack)
                segment.close()
        if request.writable and loaded_log.damage is None:
            if loaded_log.epochs != stored_epochs:
                loaded_log.stores_stale_epochs = write_epochs_if_room(files, loaded_log.epochs, stored_epochs)
            bases = [segment.base_offset for segment in loaded_log.segments]
            remove_stray_snapshots(files, loader.list_snapshots(), bases, loaded_log.log_end)
            if MARKS_FILE in names:
                end_round(files, loaded_log.log_end)
        stack.pop_all()
    return loaded_log


class _Loader:
    """Passes that load one log. They share the result ``loaded_log``."""

    def __init__(
        self,
        files: LogFiles,
        components: Components,
        config: TopicConfig,
        request: LoadRequest,
        names: list[str],
        progress: Progress,
        loaded_log: LoadedLog,
    ) -> None:
        self.files, self.components, self.config, self.request = files, components, config, request
        self.progress, self.loaded_log = progress, loaded_log
        self.names: list[str] | None = names  # None after a file was added or removed: listing is slow
        self.snapshots = snapshot_offsets(names)
        self.newest_snapshot = 0  # offset of the good snapshot that the producers' state was restored from

    def run(self) -> None:
        """Run all passes; raise SegmentOverflow if a segment must first be split."""
        loaded_log, request = self.loaded_log, self.request
        floor = request.log_start or 0
        for segment in loaded_log.segments[:-1]:
            spans = find_closed_spans(segment, self.components)
            if spans:
                raise SegmentOverflow(segment, spans)
        if request.clean or not loaded_log.segments:
            self._tail()
        else:
            self._recover()
        if loaded_log.log_end < floor:
            self._drop_all(floor)
        self._repair_indexes()
        if not loaded_log.segments and request.writable:
            self._create(loaded_log.log_end)
        end = loaded_log.log_end
        loaded_log.recovery_point = end if request.clean else min(request.recovery_point, end)
        # With a tier, keep an epoch that starts exactly at the log end; Kafka's loader drops it. The tier may already
        # store that epoch although nothing was appended in it, and epochs never decrease.
        epochs, has_tier = loaded_log.epochs, self.config.remote_storage_enable
        loaded_log.epochs = epochs.truncate_from_end(end + 1 if has_tier else end).truncate_from_start(floor)
        if has_tier and not request.is_replicated and loaded_log.epochs.latest < epochs.latest:
            loaded_log.epochs = loaded_log.epochs.assign(epochs.latest, end)  # a power loss has removed its records
        if NEXT_EPOCH_FILE in self._list_names():
            loaded_log.epochs = add_next_epoch(loaded_log.epochs, self.files, loaded_log.log_end)

    def list_snapshots(self) -> list[int]:
        """Return the offsets of all snapshots that exist now."""
        return snapshot_offsets(self._list_names())

    def _list_names(self) -> list[str]:
        if self.names is None:
            self.names = file_names(self.files)
        return self.names

    def _write_snapshot(self, offset: int, state: ProducerState) -> None:
        if write_snapshot_if_room(self.files, offset, state):
            self.loaded_log.snapshot_offset = offset
        self.names = None

    # --- a clean stop ------------------------------------------------------------------------------------------------

    def _tail(self) -> None:
        """Find the log end: read the active segment from its last index entry on."""
        loaded_log, request = self.loaded_log, self.request
        loaded_log.log_end, valid_bytes = request.log_start or 0, 0
        label = self.files.path(segment_file(loaded_log.log_end, LOG_SUFFIX))
        if loaded_log.segments:
            active = loaded_log.segments[-1]
            label, valid_bytes = active.label, self._walk_tail(active)
        expected = request.high_watermark
        if loaded_log.damage is None and expected is not None and expected > loaded_log.log_end:
            end = loaded_log.log_end
            reason = f"the log ends at offset {end}, but its high watermark was {expected}: records are missing"
            loaded_log.damage = CorruptBatchError(reason, label, valid_bytes)
        if loaded_log.damage is not None and loaded_log.segments:
            loaded_log.segments[-1] = loaded_log.segments[-1].limit_to(valid_bytes, {})
        if not self.snapshots:  # as in Kafka, an old directory without snapshots is not scanned for producers
            loaded_log.producers.end_offset = loaded_log.log_end
        else:
            self._producers_up_to(loaded_log.log_end)
            loaded_log.snapshot_offset = self.newest_snapshot
        if request.writable and loaded_log.damage is None:
            self._write_missing_snapshots()

    def _walk_tail(self, active: Segment) -> int:
        """Set the log end offset; return the size (bytes) of the good part of the active segment."""
        end_offset, valid_bytes = active.base_offset, 0
        try:
            for chunk in walk(active, last_indexed_position(active, self.components), self.components):
                end_offset, valid_bytes = chunk.tables[-1].last_offset[-1] + 1, chunk.end_position
        except CorruptBatchError as error:
            self._check_overflow(active, error)
            self.loaded_log.damage = error
        active.end_offset = self.loaded_log.log_end = end_offset
        active.forget_indexes()  # the log end was not known when the indexes were checked
        return valid_bytes

    def _producers_up_to(self, end: int) -> None:
        try:
            self.loaded_log.producers = self._producers_at(end)
        except CorruptBatchError as error:
            self.loaded_log.damage = self.loaded_log.damage or error
            self.loaded_log.producers.end_offset = end

    def _producers_at(self, end: int) -> ProducerState:
        """Return the producers' state below ``end``, from the newest good snapshot and the batches after it."""
        state = newest_snapshot(self.files, self.snapshots, end) or ProducerState()
        self.newest_snapshot = state.end_offset
        state.forget_silent(self._silent_before_ms)
        start = max(state.end_offset, self.loaded_log.segments[0].base_offset if self.loaded_log.segments else end)
        replay_range(state, self.loaded_log.segments, start, end, self.components)
        return state

    @property
    def _silent_before_ms(self) -> int:
        return self.components.env.clock.now_ms() - self.request.producer_expiration_ms

    def _write_missing_snapshots(self) -> None:
        """Write snapshots at the last two base offsets and the log end, if these are above the newest good snapshot."""
        snapshot_ends = {segment.base_offset for segment in self.loaded_log.segments[-2:]} | {self.loaded_log.log_end}
        for offset in sorted(offset for offset in snapshot_ends if offset > self.newest_snapshot):
            is_known = offset == self.loaded_log.log_end or not self.snapshots
            self._write_snapshot(offset, self.loaded_log.producers if is_known else self._producers_at(offset))

    # --- an unclean stop ---------------------------------------------------------------------------------------------

    def _recover(self) -> None:
        """Check every segment that may contain offsets from the recovery point on.

        If a batch is damaged, the log ends before it: its segment is truncated, and all later segments are dropped.
        """
        loaded_log, request = self.loaded_log, self.request
        last_index = len(loaded_log.segments) - 1
        ends = enumerate(segment.end_offset for segment in loaded_log.segments)
        first = next((index for index, end in ends if end > request.recovery_point), last_index)
        self._producers_up_to(loaded_log.segments[first].base_offset)
        if request.writable and loaded_log.damage is None and self.newest_snapshot < loaded_log.producers.end_offset:
            self._write_snapshot(loaded_log.producers.end_offset, loaded_log.producers)
        on_bytes = counted(self.progress, sum(segment.size_bytes for segment in loaded_log.segments[first:]))
        for index in range(first, len(loaded_log.segments)):
            segment = loaded_log.segments[index]
            valid_part = scan_valid_part(segment, self.components, self.config, self._replay, on_bytes)
            if valid_part.damage is not None:
                self._check_overflow(segment, valid_part.damage)
            check_same_bytes(segment.file, valid_part.valid_bytes)
            if valid_part.damage is not None and valid_part.end_offset > segment.end_offset:
                # truncate before the first batch that has offsets of the next segment
                self._producers_up_to(segment.base_offset)
                valid_part = scan_valid_part(
                    segment, self.components, self.config, self._replay, offset_limit=segment.end_offset
                )
            loaded_log.recovered_segments += 1
            cut_bytes = segment.size_bytes - valid_part.valid_bytes
            is_last = cut_bytes > 0 or index == len(loaded_log.segments) - 1
            if is_last:  # drop them before the truncation: if the power fails again, recovery finds the damage again
                loaded_log.truncated_bytes += cut_bytes + sum(
                    later.size_bytes for later in loaded_log.segments[index + 1 :]
                )
                self._drop(loaded_log.segments[index + 1 :])
                del loaded_log.segments[index + 1 :]
            end = self._settle(index, valid_part, is_last=is_last)
            if request.writable:
                self._write_snapshot(end, loaded_log.producers)
            loaded_log.producers.forget_silent(self._silent_before_ms)  # in Kafka, the reload of the snapshot does this
            if is_last:
                break
        loaded_log.log_end = loaded_log.producers.end_offset = loaded_log.segments[-1].end_offset

    def _replay(self, chunk: Chunk, table: BatchTable) -> Mapping[int, AbortedTransaction]:
        if max(table.leader_epoch) > self.loaded_log.epochs.latest:
            for epoch, offset in zip(table.leader_epoch, table.base_offset, strict=True):
                if epoch > self.loaded_log.epochs.latest:
                    self.loaded_log.epochs = self.loaded_log.epochs.assign(epoch, offset)
        return replay_table(self.loaded_log.producers, chunk.data, table, self.components)

    def _settle(self, index: int, valid_part: ValidPart, *, is_last: bool) -> int:
        """Apply recovery's result to one segment: on disk, or in memory for a reader. Return its new end offset."""
        segment = self.loaded_log.segments[index]
        end = valid_part.end_offset if is_last else segment.end_offset
        if self.request.writable:
            is_longer = segment.file.size_bytes > valid_part.valid_bytes
            if is_last or is_longer:
                segment.file.truncate(valid_part.valid_bytes)  # also frees preallocated space after the last batch
            if is_longer:
                segment.file.sync()  # a roll does not sync a segment whose records are durable
            for role, entries in valid_part.entries.items():
                self._write_index(segment, role, entries, sync=not is_last)  # the appender syncs those of the last
        else:
            segment = self.loaded_log.segments[index] = segment.limit_to(valid_part.valid_bytes, valid_part.entries)
        segment.end_offset, segment.largest = end, valid_part.largest
        return end

    def _write_index(self, segment: Segment, role: IndexRole, entries: bytes, *, sync: bool = True) -> None:
        """Replace an index. An unsynced index could have zeros after a power loss, and no later recovery replaces it.

        A broker deletes a segment early if its time index has only zeros.
        """
        self.names = None
        write_index_if_room(segment, role, entries, self.config.segment_index_bytes, sync=sync)
        if role is IndexRole.TRANSACTION and entries:
            self.files.sync()  # if a power loss removed the file, a later recovery might not scan the segment

    def _check_overflow(self, segment: Segment, error: CorruptBatchError) -> None:
        """Raise SegmentOverflow if the cause of ``error`` is not damage, but a segment that must be split."""
        is_active = segment is self.loaded_log.segments[-1]
        known_end = segment.end_offset
        if is_active:
            known_end = max(self.request.recovery_point, self.request.high_watermark or 0, self.request.log_start or 0)
        offset_limit = None if is_active else segment.end_offset
        spans = spans_at(error, segment, self.components, offset_limit=offset_limit, known_end=known_end)
        if spans:
            raise SegmentOverflow(segment, spans)

    # --- both --------------------------------------------------------------------------------------------------------

    def _repair_indexes(self) -> None:
        """Rebuild missing offset indexes, and transaction indexes that contradict the log.

        If a segment has no offset index, all its indexes are rebuilt. A transaction index is rebuilt from the
        producers' state at the segment's base offset and the segment's batches.
        """
        suffixes = {role: index.suffix for role, index in self.components.indexes.items()}
        names, missing = set(self._list_names()), missing_roles(self.components)
        for segment in self.loaded_log.segments:
            is_bare = IndexRole.OFFSET in missing or not segment.size_bytes
            has_offsets = is_bare or segment.file_name(suffixes[IndexRole.OFFSET]) in names
            has_transactions = segment.file_name(suffixes[IndexRole.TRANSACTION]) in names
            is_sound = not has_transactions or segment.is_sound(IndexRole.TRANSACTION)
            if IndexRole.TRANSACTION in missing and segment.size_bytes:
                is_sound = False
            if is_sound and has_offsets:
                continue
            try:
                state = self._producers_at(segment.base_offset)
            except CorruptBatchError as error:
                self.loaded_log.damage = self.loaded_log.damage or error
                continue

            def again(
                chunk: Chunk, table: BatchTable, state: ProducerState = state
            ) -> Mapping[int, AbortedTransaction]:
                return replay_table(state, chunk.data, table, self.components)

            entries = scan_valid_part(segment, self.components, self.config, again).entries
            # If the offset index exists, the next opening assumes that all indexes exist. Sync the transaction index
            # first.
            for role in [IndexRole.TRANSACTION] if has_offsets else sorted(entries, key=IndexRole.TRANSACTION.__ne__):
                if not self.request.writable:
                    segment.hold_entries(role, entries[role])
                    continue
                self._write_index(segment, role, entries[role])

    def _drop_all(self, start: int) -> None:
        """Drop all segments and restart at ``start``: the log ends below its start because files have vanished.

        The leader epoch at ``start`` is kept: the tier of the log may have records of this epoch.
        """
        self._drop(self.loaded_log.segments)
        self.loaded_log.segments = []
        self.loaded_log.producers, self.loaded_log.log_end = ProducerState(), start
        self.loaded_log.producers.end_offset = start

    def _drop(self, segments: list[Segment]) -> None:
        """Drop the last segments from the last one backwards, each durably: a power loss then leaves no hole."""
        for segment in reversed(segments):
            segment.close()
            self.names = None
            if self.request.writable:
                self.loaded_log.deleted_files.extend(set_aside(self.files, segment))
                self.files.sync()

    def _create(self, base_offset: int) -> None:
        """Create the first segment of an empty log."""
        log = self.files.open_segment(segment_file(base_offset, LOG_SUFFIX), create=True)
        self.loaded_log.segments = [Segment(self.files, base_offset, base_offset, self.components, log)]
