"""Link between a log and its tier while the store is unavailable: the local tier note, and rejoining the tier.

A small file in the log's folder, the tier note, describes the tier's contents at the last commit that this engine made
or saw. The note is stored before the first segment is evicted from local disk. It is read when a log is opened. If the
store is unavailable then, reads rely on the note: the log start does not change, and the records below the first local
segment are in the tier. Nothing is evicted, uploaded or committed because of the note.

docs/formats/tier-note.md describes the file.
"""

from __future__ import annotations

import contextlib
import json
import logging
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Never, overload

from stratalog.epochs.lineage import parted_at
from stratalog.errors import (
    CorruptCheckpointError,
    FencedEpochError,
    LogDirOfflineError,
    OutOfResourcesError,
    StoreError,
)
from stratalog.log.load.loaded_log import LoadedLog
from stratalog.log.read.tier_view import RemoteLog, RemoteSegments, RemoteView
from stratalog.log.state.log_state import LogState
from stratalog.model.names import TIER_NOTE_FILE, TopicPartition
from stratalog.model.notes import readable
from stratalog.model.offsets import EpochEntry
from stratalog.segment.readable import ReadableSegment
from stratalog.spi.segment_store import LogFiles

FORMAT_VERSION: Final = 1
_LOGGER: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TierNote:
    """Contents of the tier note: a ``RemoteView`` without its segments.

    ``segments`` is the number of segments. ``end_offset`` is their exclusive end, or the log start if there were none.
    """

    version: int = 0
    log_start: int = 0
    high_watermark: int = 0
    end_offset: int = 0
    segments: int = 0
    first_dirty_offset: int = 0
    leader_epochs: tuple[EpochEntry, ...] = ()
    identity: str = ""

    @classmethod
    def of(cls, view: RemoteView) -> TierNote:
        """Return the note for a tier view, without a request to the store."""
        return cls(
            view.version,
            view.log_start,
            view.high_watermark,
            view.end_offset,
            len(view.segments),
            view.first_dirty_offset,
            view.leader_epochs,
            view.identity,
        )


class AwaySegments(RemoteSegments):
    """The segments of an unavailable tier: their start, their end and their approximate number are known.

    Args:
        start: offset of the first segment.
        end: exclusive end offset of the last segment.
        count: number of segments; at least 1.
        why: returns the error to raise when a segment is accessed.
    """

    __slots__ = ("_count", "_end", "_start", "_why")

    def __init__(self, start: int, end: int, count: int, why: Callable[[], StoreError]) -> None:
        super().__init__()
        self._start, self._end, self._count, self._why = start, end, count, why

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[ReadableSegment]:
        self._raise()

    def __reversed__(self) -> Iterator[ReadableSegment]:
        self._raise()

    @overload
    def __getitem__(self, index: int) -> ReadableSegment: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[ReadableSegment]: ...

    def __getitem__(self, index: int | slice) -> ReadableSegment | Sequence[ReadableSegment]:
        self._raise()

    @property
    def start_offset(self) -> int:
        """First offset that is known to be in the tier."""
        return self._start

    @property
    def end_offset(self) -> int:
        """Exclusive end offset of the segments."""
        return self._end

    def up_to(self, end: int) -> RemoteSegments:
        """Return the segments that end at or below ``end``, as if one of them ended exactly there."""
        return AwaySegments(self._start, end, self._count, self._why) if end > self._start else RemoteSegments()

    def from_offset(self, offset: int, *, since_ms: int | None = None) -> Iterator[ReadableSegment]:
        """Return an empty iterator if the segments end at or below ``offset``; otherwise raise the store's error."""
        del since_ms
        if offset < self._end:
            self._raise()
        return iter(())

    def _raise(self) -> Never:
        raise self._why()


# --- opening ---------------------------------------------------------------------------------------------------------


def tier_of(remote: RemoteLog, files: LogFiles, loaded: LoadedLog) -> RemoteView:
    """Return the tier's view of a log that is being opened.

    If the store fails and the log may open without its tier, return the view that local disk implies.

    Raises:
        TamperedManifestError: a key authenticates the tier of the log, and the tier is older than the note, or another
        one.
        StoreError: the store failed, and the log may not open without its tier.
        CorruptCheckpointError: the store is unavailable, and the note is damaged.
        Others as ``RemoteLog.view``.
    """
    with contextlib.suppress(CorruptCheckpointError):
        noted = read_note(files)
        if noted is not None:
            remote.expect(noted.version, noted.identity)
    try:
        return remote.view()
    except StoreError as error:
        if not remote.may_open_without(error):
            raise
    view = assumed_view(read_note(files), loaded, remote.wanted)
    remote.assume(view)
    return view


def assumed_view(note: TierNote | None, loaded: LoadedLog, why: Callable[[], StoreError]) -> RemoteView:
    """Return the view of the tier that local disk implies.

    A segment leaves local disk only after the tier has it. Therefore the tier holds all records between the log start
    and the first local segment, even those committed after the note. Without a note (earlier releases wrote none), a
    checkpoint with a log start below the first segment has the same meaning.
    """
    known = note or TierNote()
    first = loaded.segments[0].base_offset if loaded.segments else loaded.log_end
    start = max(known.log_start, loaded.log_start)
    evicted = first > start and (known.segments > 0 or loaded.has_start)
    end = max(known.end_offset if known.segments else 0, first if evicted else 0)
    if end <= start:
        return RemoteView(known.version, known.log_start, known.high_watermark)
    return RemoteView(
        known.version,
        start,
        max(known.high_watermark, end),
        AwaySegments(start, end, max(known.segments, 1), why),
        known.leader_epochs,
        known.first_dirty_offset,
    )


def tell_losses(name: TopicPartition, tiered: RemoteView, files: LogFiles, loaded: LoadedLog) -> None:
    """Log an error if the tier has lost evicted records because it was emptied or rolled back."""
    with contextlib.suppress(CorruptCheckpointError):
        note = read_note(files)
        if note is None or not note.segments or not loaded.segments:
            return
        start = max(note.log_start, loaded.log_start, tiered.log_start, tiered.end_offset)
        end = min(note.end_offset, loaded.segments[0].base_offset)
        if start < end:
            _LOGGER.error(
                "the tier has lost what local disk left to it: log=%s offsets=[%d, %d) version=%d version_before=%d",
                name,
                start,
                end,
                tiered.version,
                note.version,
            )


def check_not_taken(name: TopicPartition, tiered: RemoteView, epochs: Sequence[EpochEntry], log_end: int) -> None:
    """Raise FencedEpochError if the tier holds records that only another engine, after a takeover, can have written."""
    if not tiered.segments:
        return
    end = tiered.end_offset
    if end > log_end:
        raise FencedEpochError(f"the tier holds {name} up to offset {end}, this directory only up to {log_end}")
    offset = parted_at(epochs, tiered.leader_epochs, tiered.start_offset, end)
    if offset is not None:
        raise FencedEpochError(f"the tier holds other records of {name} than this directory from offset {offset} on")


# --- joining the tier again ------------------------------------------------------------------------------------------


def rejoined(state: LogState, leader_epoch: int) -> None:
    """Follow the current tier after its head has been read. Readers see the tier even if this function raises.

    Args:
        state: state of a log that was opened without its tier.
        leader_epoch: leader epoch of the head; -1 if there is none.

    Raises:
        FencedEpochError: another engine took the log over in the meantime.
    """
    with state.lock:
        remote = state.remote
        if state.closed or remote is None:
            return
        try:
            tiered = remote.view()
            if state.may_lag:
                state.is_leader = state.is_leader and tiered.within(state.epochs.entries).end_offset <= state.log_end
                return
            check_not_taken(state.log, tiered, state.epochs.entries, state.log_end)
            if leader_epoch > state.leader_epoch:
                raise FencedEpochError(
                    f"{state.log} was taken over in leader epoch {leader_epoch} while its tier was away, ours is "
                    f"{state.leader_epoch}"
                )
        finally:
            state.publish()


# --- the note --------------------------------------------------------------------------------------------------------


def note_tier(state: LogState) -> None:
    """Store the tier note durably, unless it is already up to date.

    On a full disk the earlier note is kept: it is older, but not wrong.

    Raises:
        LogDirOfflineError: the disk failed.
    """
    remote = state.remote
    if remote is None or remote.is_assumed or state.closed:
        return
    with state.noting:  # otherwise a thread with an older tier view could replace a newer note
        note = TierNote.of(remote.view())
        if note.version == state.noted_version:
            return
        try:
            write_note(state.files, note)
            state.noted_version = note.version
        except OutOfResourcesError as error:
            _LOGGER.warning("what the tier holds of a log could not be noted: log=%s error=%s", state.log, error)
        except LogDirOfflineError as error:
            state.fail(error)
            raise


def forget_tier(state: LogState) -> None:
    """Remove the note durably, because the log is about to leave its tier."""
    with state.noting:
        state.files.remove(TIER_NOTE_FILE)
        state.files.sync()
        state.noted_version = -1


def write_note(files: LogFiles, note: TierNote) -> None:
    """Replace the note's file durably; errors as ``LogFiles.replace_small``."""
    body: dict[str, object] = {
        "version": FORMAT_VERSION,
        "manifest_version": note.version,
        "log_start": note.log_start,
        "high_watermark": note.high_watermark,
        "end_offset": note.end_offset,
        "segments": note.segments,
        "first_dirty_offset": note.first_dirty_offset,
        "leader_epochs": [list(entry) for entry in note.leader_epochs],
        **({"identity": note.identity} if note.identity else {}),
    }
    data = json.dumps({**body, "crc32": _crc(body)}).encode()
    files.replace_small(TIER_NOTE_FILE, readable(data, parse_note, files.path(TIER_NOTE_FILE)))


def read_note(files: LogFiles) -> TierNote | None:
    """Return the stored note, None if there is none; errors as ``parse_note``."""
    data = files.read_small(TIER_NOTE_FILE)
    return None if data is None else parse_note(data, files.path(TIER_NOTE_FILE))


def parse_note(data: bytes, path: str) -> TierNote:
    """Return the note in the file's bytes; ``path`` is for errors.

    Raises:
        CorruptCheckpointError: the file is damaged, or a later release wrote it.
    """
    try:
        body = json.loads(data)
        version, crc = body["version"], body.pop("crc32")
        if version == FORMAT_VERSION:
            if crc != _crc(body):
                raise CorruptCheckpointError("the note about the tier does not have its checksum", path)
            return _note_from(body)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptCheckpointError(f"the note about the tier is malformed: {error!r}", path) from error
    raise CorruptCheckpointError(f"a note about the tier of version {version!r} is not supported by this release", path)


def _note_from(body: dict[str, Any]) -> TierNote:  # Any: JSON whose checksum was verified
    return TierNote(
        _whole(body["manifest_version"]),
        _whole(body["log_start"]),
        _whole(body["high_watermark"]),
        _whole(body["end_offset"]),
        _whole(body["segments"]),
        _whole(body["first_dirty_offset"]),
        tuple(EpochEntry(_whole(epoch), _whole(start)) for epoch, start in body["leader_epochs"]),
        _text(body.get("identity", "")),
    )


def _whole(value: Any) -> int:  # Any: JSON
    if type(value) is not int:
        raise TypeError(f"{value!r} is no integer")
    return value


def _text(value: Any) -> str:  # Any: the same
    if type(value) is not str:
        raise TypeError(f"{value!r} is no text")
    return value


def _crc(body: object) -> int:
    return zlib.crc32(json.dumps(body, sort_keys=True).encode())
