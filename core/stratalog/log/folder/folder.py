"""Files of a log's folder: open live segments, set segments aside, write indexes, epochs and snapshots.

Source: apache/kafka LogLoader, LocalLog.deleteSegmentFiles.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack, closing
from typing import Final

from stratalog.epochs.checkpoint import format_epochs, parse_epochs
from stratalog.epochs.epoch_cache import EpochCache
from stratalog.errors import CorruptBatchError, NotAFileError, OutOfResourcesError
from stratalog.log.folder.swap_files import INDEX_SUFFIXES, SwapPlan, plan_swap
from stratalog.model.batches import NO_EPOCH
from stratalog.model.names import (
    DELETED_SUFFIX,
    DESCRIBING_SUFFIXES,
    LEADER_EPOCHS_FILE,
    LOG_SUFFIX,
    NEXT_EPOCH_FILE,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    SegmentFileName,
    parse_segment_file,
    segment_file,
)
from stratalog.model.notes import readable
from stratalog.model.offsets import EpochEntry
from stratalog.producers.snapshot import ProducerEntry, decode_snapshot, encode_snapshot
from stratalog.segment.components import Components
from stratalog.segment.file_chunks import check_listed, check_sizes
from stratalog.segment.framing import walk
from stratalog.segment.segment import Segment
from stratalog.spi.indexes import IndexRole
from stratalog.spi.segment_store import LogFiles

_LOGGER: Final = logging.getLogger(__name__)
UNKNOWN_END: Final = 1 << 62  # placeholder for the end of a segment that was not read yet


def open_segments(
    files: LogFiles, components: Components, stack: ExitStack, *, writable: bool, names: list[str] | None = None
) -> list[Segment]:
    """Open the live segments of a folder, ascending, after completing or undoing an interrupted replacement.

    Each segment ends where the next one begins; the ``end_offset`` of the last one is ``UNKNOWN_END``. If a segment
    that replaces others is incomplete or damaged, it replaces only the offsets of its whole batches. Recovery truncates
    it after the last whole batch, like any other segment.

    Source: apache/kafka LogLoader.load, LogSegment.readNextOffset.

    Args:
        files: the folder.
        components: the log's components.
        stack: closes the segments, unless the caller removes their callbacks with ``pop_all``.
        writable: if False, no file is renamed or removed; segments are read under their current names.
        names: the names of all files, if the caller has them already. The list is updated if files change.

    Raises:
        LogDirError: a file cannot be opened, renamed or removed.
        PluginError: the segment store of a plugin returns contradictory sizes.
    """
    if names is None:
        names = file_names(files)
    plan = plan_swap(
        names, lambda name: _end_of(name, files, components), lambda name: _first_end(name, files, components)
    )
    live = plan.live
    if writable:
        warn_of_missing_logs(files, plan.orphans, names)
        if plan.changes:
            _carry_out(plan, files)
            names[:] = file_names(files)
        live = {name: name for name in live}
    bases = sorted(
        parsed.base_offset for name in live if (parsed := parse_segment_file(name)) and parsed.suffix == LOG_SUFFIX
    )
    current_names = _find_unrenamed(live)
    segments = []
    for base, end in zip(bases, [*bases[1:], UNKNOWN_END], strict=False):
        log = files.open_segment(live[segment_file(base, LOG_SUFFIX)])
        segments.append(Segment(files, base, end, components, log, names=current_names.get(base)))
        stack.callback(segments[-1].close)
    if writable:
        check_sizes(files, segments)
    return segments


def missing_logs(indexes: Iterable[str], names: Collection[str]) -> dict[str, str]:
    """Return the names of missing ``.log`` files, each with the name of an index of its segment.

    A segment with a ``.log.deleted`` file is left out: a crash has interrupted its deletion. ``names`` are the names of
    all files.
    """
    bases = {parsed.base_offset for name in names if (parsed := parse_segment_file(name)) and _is_log(parsed)}
    missing = dict[str, str]()
    for name in indexes:
        parsed = parse_segment_file(name)
        if parsed is None or parsed.state or parsed.suffix not in INDEX_SUFFIXES:
            continue
        log = segment_file(parsed.base_offset, LOG_SUFFIX)
        if parsed.base_offset not in bases and log + DELETED_SUFFIX not in names:
            missing.setdefault(log, name)
    return missing


def _is_log(name: SegmentFileName) -> bool:
    return name.suffix == LOG_SUFFIX and name.state in {"", SWAP_SUFFIX}


def warn_of_missing_logs(files: LogFiles, indexes: Iterable[str], names: Collection[str]) -> None:
    """Log a warning for each result of ``missing_logs``.

    Source: apache/kafka LogLoader.loadSegmentFiles, which warns of an orphaned index file.
    """
    for log, index in sorted(missing_logs(indexes, names).items()):
        _LOGGER.warning(
            "%s is missing, but its index %s exists: the records of this segment may be lost, and recovery removes the "
            "index",
            files.path(log),
            index,
        )


def _open_unread(name: str, files: LogFiles, components: Components) -> Segment:
    parsed = parse_segment_file(name)
    assert parsed is not None  # ``plan_swap`` has parsed the name
    log = files.open_segment(name)
    return Segment(files, parsed.base_offset, UNKNOWN_END, components, log, names={LOG_SUFFIX: name})


def _end_of(name: str, files: LogFiles, components: Components) -> int:
    """Return the first offset after the last whole batch of a ``.log.swap`` file."""
    with closing(_open_unread(name, files, components)) as swap:
        end = swap.base_offset
        with contextlib.suppress(CorruptBatchError):  # a torn replacement counts up to its last whole batch
            for chunk in walk(swap, 0, components, check_crc=False):
                end = chunk.tables[-1].last_offset[-1] + 1
        return end


def _first_end(name: str, files: LogFiles, components: Components) -> int:
    """Return the first offset after the first batch of a ``.log`` file; its base offset if there is no good batch."""
    with closing(_open_unread(name, files, components)) as live:
        with contextlib.suppress(CorruptBatchError):
            for chunk in walk(live, 0, components, check_crc=False, read_bytes=1, relative_to=UNKNOWN_END):
                return chunk.tables[0].last_offset[0] + 1
        return live.base_offset


def file_names(files: LogFiles) -> list[str]:
    """Return the names of all files in a log's folder."""
    return [file.name for file in files.list() if not file.is_folder]


def check_file_names(files: LogFiles) -> list[str]:
    """Return the names of all files in a log's folder, and check them, because the log is about to be opened.

    Raises:
        NotAFileError: a folder, a FIFO or another entry that is not a file has the name of a segment's file. Without
            the check, the log would open without the segment.
        PluginError: the segment store's list leaves out a ``.log`` file.
    """
    entries = files.list()
    for entry in entries:
        parsed = parse_segment_file(entry.name)
        if not entry.is_file and parsed is not None and parsed.suffix != SNAPSHOT_SUFFIX:
            raise NotAFileError("this is not a regular file", files.path(entry.name))
    names = [file.name for file in entries if not file.is_folder]
    check_listed(files, names)
    return names


def _carry_out(plan: SwapPlan, files: LogFiles) -> None:
    """Carry out a plan. Each step is durable before the next begins, so the next opening can continue after a crash."""
    logs = [pair for pair in plan.renames if pair[1].endswith(LOG_SUFFIX)]
    indexes = [pair for pair in plan.renames if not pair[1].endswith(LOG_SUFFIX)]
    one_by_one = (((), [pair]) for pair in logs)  # after a crash, live segments between two ``.swap`` logs are removed
    for removals, renames in ((plan.undone, ()), (plan.orphans, ()), (plan.removals, ()), *one_by_one, ((), indexes)):
        for name in removals:
            files.remove(name)
        for old, new in renames:
            files.rename(old, new)
        if removals or renames:
            files.sync()


def _find_unrenamed(live: Mapping[str, str]) -> dict[int, dict[str, str]]:
    """Return the current names of files that do not have their final name yet, by base offset and suffix."""
    names: dict[int, dict[str, str]] = {}
    for final, current in live.items():
        if final != current and (parsed := parse_segment_file(final)) is not None:
            names.setdefault(parsed.base_offset, {})[parsed.suffix] = current
    return names


def set_aside(
    files: LogFiles, segment: Segment, *, keep_snapshot: bool = False, names: Collection[str] | None = None
) -> list[str]:
    """Rename a segment's files to ``.deleted``, the log first; return the new names. The folder is not synced.

    Files that describe the segment (``DESCRIBING_SUFFIXES``) are removed at once. If ``keep_snapshot`` is True, the
    producer snapshot keeps its name. ``names`` are the names of all existing files. If ``names`` is None, the folder is
    listed.
    """
    suffixes = [LOG_SUFFIX, *(index.suffix for index in segment.components.indexes.values())]
    suffixes += [] if keep_snapshot else [SNAPSHOT_SUFFIX]
    existing = set(file_names(files)) if names is None else names
    new_names = []
    for suffix in suffixes:
        name = segment.file_name(suffix)
        # rename it even if unlisted: a remaining log would hide tier segments
        if name in existing or suffix == LOG_SUFFIX:
            files.rename(name, name + DELETED_SUFFIX)
            new_names.append(name + DELETED_SUFFIX)
    for suffix in DESCRIBING_SUFFIXES:
        describing_file = segment_file(segment.base_offset, suffix)
        if describing_file in existing:
            files.remove(describing_file)
    return new_names


def write_index(segment: Segment, role: IndexRole, entries: bytes, max_bytes: int, *, sync: bool = False) -> None:
    """Replace the contents of an index file with ``entries``. The file must not be open.

    The file may later grow to ``max_bytes``. If ``sync`` is True, the contents are durable on return. A transaction
    index is always durable on return, because it cannot be rebuilt from its segment alone. An empty transaction index
    has no file.
    """
    index, files = segment.components.indexes[role], segment.files
    name = segment.file_name(index.suffix)
    is_transaction = role is IndexRole.TRANSACTION
    if is_transaction and not entries:
        files.remove(name)
        return
    file = files.open_index(name, max_bytes=max(max_bytes, len(entries)), writable=True, reserve=not is_transaction)
    try:
        file.truncate(0)
        file.append(entries)
        if sync or is_transaction:
            file.trim()
            file.sync()
    finally:
        file.close()
    segment.forget_indexes()


def write_index_if_room(segment: Segment, role: IndexRole, entries: bytes, max_bytes: int, *, sync: bool) -> None:
    """Write an index as ``write_index`` does. If the disk is full, log a warning and remove the index file.

    The loader calls this function, because reads, offload and eviction must work even on a full disk. Without an index,
    searches read more of the log. For a transaction index, the error is raised instead, because readers rely on it.
    """
    try:
        write_index(segment, role, entries, max_bytes, sync=sync)
    except OutOfResourcesError as error:
        if role is IndexRole.TRANSACTION:
            raise
        segment.files.remove(segment.file_name(segment.components.indexes[role].suffix))
        segment.forget_indexes()
        _LOGGER.warning("no space for an index; the log opens without it: %s", error)


def read_epochs(files: LogFiles) -> EpochCache:
    """Return the stored leader epochs, empty if there is no file.

    Raises CorruptCheckpointError if the file is malformed.
    """
    return EpochCache(parse_epochs(files.read_small(LEADER_EPOCHS_FILE) or b"", files.path(LEADER_EPOCHS_FILE)))


def add_next_epoch(epochs: EpochCache, files: LogFiles, log_end: int) -> EpochCache:
    """Return ``epochs`` plus the epoch that ``write_next_epoch`` stored. This epoch begins at ``log_end``.

    If no epoch was stored, or if the stored epoch is not later than the last one, ``epochs`` is returned unchanged.

    Raises:
        CorruptCheckpointError: the file with the stored epoch is malformed.
    """
    entries = parse_epochs(files.read_small(NEXT_EPOCH_FILE) or b"", files.path(NEXT_EPOCH_FILE))
    latest = max((entry.epoch for entry in entries), default=NO_EPOCH)
    return epochs.assign(latest, log_end) if latest > epochs.latest else epochs


def write_next_epoch(files: LogFiles, epoch: int, log_end: int) -> None:
    """Store durably that ``epoch`` begins at ``log_end``, before anything is appended in it.

    ``leader-epoch-checkpoint`` cannot store such an epoch: as in Kafka, loading a log drops epochs that begin at the
    log end.
    """
    store_epochs(files, NEXT_EPOCH_FILE, [EpochEntry(epoch, log_end)])


def write_epochs(files: LogFiles, epochs: EpochCache) -> None:
    """Store the leader epochs durably."""
    store_epochs(files, LEADER_EPOCHS_FILE, epochs.entries)


def write_epochs_if_room(files: LogFiles, epochs: EpochCache, stored_epochs: EpochCache) -> bool:
    """Replace the leader epochs ``stored_epochs`` by ``epochs``, durably.

    If the disk is full, log a warning and keep the file. The loader calls this function, because reads, offload and
    eviction must work even on a full disk. A file with more epochs than needed does no harm before the next append. If
    the file lacks an epoch of ``epochs``, the error is raised.

    Returns:
        True if the file still has later epochs than ``epochs``.
    """
    try:
        write_epochs(files, epochs)
    except OutOfResourcesError as error:
        if epochs.latest > stored_epochs.latest:
            raise
        _LOGGER.warning("no space for the leader epochs; the log opens with the earlier file: %s", error)
        return epochs.latest < stored_epochs.latest
    return False


def store_epochs(files: LogFiles, name: str, entries: Iterable[EpochEntry]) -> None:
    """Replace a file of leader epochs durably."""
    files.replace_small(name, readable(format_epochs(entries), parse_epochs, files.path(name)))


def store_snapshot(files: LogFiles, offset: int, entries: Iterable[ProducerEntry]) -> None:
    """Replace the producer snapshot for the offsets below ``offset``, durably."""
    name = segment_file(offset, SNAPSHOT_SUFFIX)
    files.replace_small(name, readable(encode_snapshot(entries), decode_snapshot, files.path(name)))
