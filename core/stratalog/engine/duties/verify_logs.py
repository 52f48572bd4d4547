"""Check of the logs of a running engine, on local disk and in the tier."""

from __future__ import annotations

from dataclasses import dataclass

from stratalog.env.progress import OnBytes, uncounted
from stratalog.errors import SegmentGoneError
from stratalog.log.log import Log
from stratalog.model.names import TopicPartition
from stratalog.segment.finding import Finding, Repair
from stratalog.segment.segment_check import check_segment, read_stored_indexes
from stratalog.tier.tier_log import TierLog
from stratalog.tier.upkeep.tier_check import TierLogCheck
from stratalog.tier.upkeep.tier_repair import FolderCopies, TierRepair


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """Result of the check of one log: the number of checked segments, local and in the tier, and the findings.

    Each item of ``repairs`` is a finding with the result of its repair; ``done`` is "" if the finding was not repaired.
    """

    log: TopicPartition
    segments: int
    repairs: tuple[Repair, ...]

    @property
    def ok(self) -> bool:
        """True if the check found no damage, or if all damage was repaired."""
        return all(repair.done for repair in self.repairs)


def checked_bytes(log: Log, remote: TierLog | None) -> int:
    """Return the total size (bytes) of the segments that ``verify_log`` checks, for its progress."""
    local_bytes = sum(segment.size_bytes for segment in log.view().segments[:-1])
    return local_bytes + (0 if remote is None else remote.known_bytes())


def verify_log(
    log: Log, remote: TierLog | None, *, deep: bool, repair: bool, on_bytes: OnBytes = uncounted
) -> VerifyResult:
    """Check the local segments of a log, and its manifest and objects in the tier.

    Args:
        log: the log. Its active segment is not checked.
        remote: the tier part of the log; None without a tier.
        deep: True to decode every local record, and to read every segment of the tier.
        repair: True to restore damaged objects of the tier from local disk. Local files are never repaired.
        on_bytes: called with the sizes of checked segments, or of checked pieces of a segment.

    Raises:
        StoreError: the store failed.
        StorageError: a local file cannot be read.
    """
    segments = log.view().segments
    names = {file.name for file in segments[-1].files.list()}
    count, repairs = 0, list[Repair]()
    for segment in segments[:-1]:
        on_bytes(segment.size_bytes)
        try:
            indexes = read_stored_indexes(segment, log.components, names)
            report = check_segment(segment, log.components, indexes=indexes, records=deep)
        except SegmentGoneError:
            continue
        # If the segment was replaced meanwhile, files of the new segment may have been read as its indexes.
        if segment in log.view().segments:
            count += 1
            repairs += (Repair(finding, "") for finding in (*report.findings, *report.bad_records))
    if remote is not None:
        check = TierLogCheck(remote, log.components, contents=deep)
        copies = TierRepair(remote, [FolderCopies(segments[-1].files, remote, log.components)]) if repair else None
        repairs += (Repair(finding, "") for finding in check.roots())
        for item in check.segments():
            findings = [item] if isinstance(item, Finding) else check.check(item, on_bytes)
            count += not isinstance(item, Finding)
            repairs += copies.segments(findings) if copies else (Repair(finding, "") for finding in findings)
    return VerifyResult(log.name, count, tuple(repairs))
