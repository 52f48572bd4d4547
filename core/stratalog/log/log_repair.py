"""Repairs of a log's folder that lose no good record."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from stratalog.config.topic import TopicConfig
from stratalog.log.folder.folder import file_names, write_epochs
from stratalog.log.load.loaded_log import LoadRequest
from stratalog.log.load.log_loader import load
from stratalog.log.load.producer_replay import newest_snapshot, snapshot_offsets
from stratalog.log.log_check import LogReport
from stratalog.model.names import LEADER_EPOCHS_FILE, SNAPSHOT_SUFFIX, parse_segment_file, segment_file
from stratalog.registry.guarded_parts import place_in
from stratalog.segment.components import Components
from stratalog.segment.finding import Finding, FindingKind, Repair
from stratalog.spi.segment_store import LogFiles

_REPAIRS: Final[Mapping[FindingKind, str]] = MappingProxyType(
    {
        FindingKind.TORN: "the tail was truncated",
        FindingKind.INDEX: "the indexes were rebuilt",
        FindingKind.SNAPSHOT: "the snapshot was replaced",
        FindingKind.EPOCHS: "the leader epochs were rebuilt",
        FindingKind.OVERFLOW: "the segment was split",
        FindingKind.LEFT_OVER: "the replacement was completed or undone",
    }
)


def is_repairable(finding: Finding) -> bool:
    """Return True if ``repair_log`` repairs the finding without losing a good record."""
    return finding.kind in _REPAIRS


def repair_log(
    files: LogFiles, components: Components, config: TopicConfig, report: LogReport, log_start: int | None
) -> list[Repair]:
    """Repair the repairable findings of ``check_log``, and return the repairs; empty if there are no such findings.

    Repairs are: truncate a torn tail, split overflowed segments, complete or undo a replacement of segments, and
    rebuild indexes, snapshots and leader epochs. The caller has locked the directory, and has made sure that the next
    opening of the directory recovers its logs as after a crash.

    Raises:
        StorageError: a file cannot be written, or the log cannot be loaded.
    """
    findings = [finding for finding in report.findings if is_repairable(finding)]
    if not findings:
        return []
    for finding in findings:
        name = finding.place.rpartition("/")[2]
        if finding.kind is FindingKind.TORN:
            log_name = next(name for name in file_names(files) if place_in(files, files.path(name)) == finding.place)
            _truncate(files, log_name, finding.position)
        elif finding.kind is FindingKind.EPOCHS:
            files.remove(LEADER_EPOCHS_FILE)
            write_epochs(files, report.epochs)
        elif finding.kind is FindingKind.INDEX:
            parsed = parse_segment_file(name)
            if parsed is not None:  # without its offset index, loading rebuilds all indexes of the segment
                files.remove(segment_file(parsed.base_offset, ".index"))
                files.remove(name)
    request = LoadRequest(
        clean=True,
        recovery_point=report.known_end,
        log_start=log_start,
        high_watermark=None,
        writable=True,
        is_replicated=True,  # the setting ``watermark`` of the engine is not known here
    )
    loaded_log = load(files, components, config, request)
    for segment in loaded_log.segments:
        segment.close()
    for name in loaded_log.deleted_files:
        files.remove(name)
    _remove_bad_snapshots(files, loaded_log.log_end)
    return [Repair(finding, _REPAIRS[finding.kind]) for finding in findings]


def _remove_bad_snapshots(files: LogFiles, log_end: int) -> None:
    """Remove the damaged snapshots that loading has not replaced, and those above the log end.

    If they were removed before the loading, the loading might find no snapshot, and would not read the log to find its
    producers.
    """
    for offset in snapshot_offsets(file_names(files)):
        if offset > log_end or newest_snapshot(files, [offset], offset) is None:
            files.remove(segment_file(offset, SNAPSHOT_SUFFIX))


def _truncate(files: LogFiles, name: str, size_bytes: int) -> None:
    log_file = files.open_segment(name)
    try:
        log_file.truncate(size_bytes)
        log_file.sync()
    finally:
        log_file.close()
