"""Findings of checks, and results of repairs, for segments, log folders and tiers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from stratalog.model.names import TopicPartition
from stratalog.spi.layouts import StoredSegment


class FindingKind(StrEnum):
    """Kind of a finding. Its value is stored in quarantine notes of a tier, and printed as JSON."""

    # in the folder of a log
    DAMAGE = "damage"
    TORN = "torn tail"
    INDEX = "index"  # also in a tier: an index was wrong when it was uploaded
    SNAPSHOT = "snapshot"
    EPOCHS = "epochs"
    BOUNDS = "bounds"
    OVERFLOW = "overflow"
    LEFT_OVER = "left over"
    # in a tier
    ROOT = "root"
    PAGE = "page"
    OFFSETS = "offsets"
    MISSING = "missing"
    SIZE = "size"
    FILE = "file"
    LOG = "log"
    ORPHAN = "orphan"  # no damage: the collector will delete the object


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem that a check found.

    Attributes:
        kind: the kind of the problem.
        place: path of the file, or key of the object.
        position: position in the file or object (bytes).
        text: description.
        segment: the affected segment of a tier; None if the problem is not in one segment of a tier.
        log: the affected log of a tier; None outside of a tier.
    """

    kind: FindingKind
    place: str
    position: int
    text: str
    segment: StoredSegment | None = None
    log: TopicPartition | None = None


@dataclass(frozen=True, slots=True)
class Repair:
    """Result of the attempt to repair a finding.

    Attributes:
        finding: the finding.
        done: description of the repair; "" if the finding could not be repaired.
        failure: the error that prevented the repair, "" if there was none.
    """

    finding: Finding
    done: str
    failure: str = ""
