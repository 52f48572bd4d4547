"""Tier note: a small file in a log's folder that describes the tier's contents.

The note describes the tier's contents at the last commit that this engine made or read. It is stored before the first
segment is evicted from local disk, and is read when the log is opened. If the store is unavailable at that time, reads
rely on the note: the log start does not change, and the records below the first local segment count as stored in the
tier. Nothing is evicted, uploaded or committed because of the note.

docs/formats/tier-note.md describes the file.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from stratalog.errors import CorruptCheckpointError
from stratalog.log.read.tier_view import RemoteView
from stratalog.model.names import TIER_NOTE_FILE
from stratalog.model.notes import integer, parse_json, readable, text
from stratalog.model.offsets import EpochEntry
from stratalog.spi.segment_store import LogFiles

FORMAT_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class TierNote:
    """Contents of the tier note: a ``RemoteView`` without its segments.

    ``version`` is the version of the manifest root. ``segments`` is the number of segments. ``end_offset`` is the
    exclusive end of the last segment, or the log start if there was none.
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
        """Return the tier note for a tier's contents, without a request to the store."""
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


def write_note(files: LogFiles, note: TierNote) -> None:
    """Replace the tier note in a log's folder durably; raise the same errors as ``LogFiles.replace_small``."""
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
    """Return the tier note in a log's folder, None if there is none; raise the same errors as ``parse_note``."""
    data = files.read_small(TIER_NOTE_FILE)
    return None if data is None else parse_note(data, files.path(TIER_NOTE_FILE))


def parse_note(data: bytes, path: str) -> TierNote:
    """Return the tier note in the bytes of its file. Errors name ``path``.

    Raises:
        CorruptCheckpointError: the file is damaged, or a later release wrote it.
    """
    return parse_json(data, path, "the note about the tier", FORMAT_VERSION, partial(_note_from, path))


def _note_from(path: str, body: dict[str, Any]) -> TierNote:  # Any: JSON
    if body.pop("crc32") != _crc(body):
        raise CorruptCheckpointError("the note about the tier has a wrong checksum", path)
    return TierNote(
        integer(body["manifest_version"]),
        integer(body["log_start"]),
        integer(body["high_watermark"]),
        integer(body["end_offset"]),
        integer(body["segments"]),
        integer(body["first_dirty_offset"]),
        tuple(EpochEntry(integer(epoch), integer(start)) for epoch, start in body["leader_epochs"]),
        text(body.get("identity", "")),
    )


def _crc(body: object) -> int:
    return zlib.crc32(json.dumps(body, sort_keys=True).encode())
