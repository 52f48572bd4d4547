"""Reads of a directory or a tier without an engine: no lock is acquired, and nothing is written.

The functions here divide one read among many processes. ``ReadSource`` describes the directory or tier. ``plan_splits``
divides ranges of offsets into splits, and ``scan`` reads one split in any process. ``plan_checks`` divides the check of
a tier into several checks, and ``check`` runs one of them.
"""

from __future__ import annotations

from stratalog.model.names import CLUSTER_METADATA_TOPIC, INTERNAL_TOPICS
from stratalog.reading.check_jobs import Check, CheckPlan, check, plan_checks
from stratalog.reading.known_records import TimestampRange, timestamp_ranges
from stratalog.reading.read_source import ReadSource
from stratalog.reading.split import Piece, Split
from stratalog.reading.split_plan import OffsetRange, plan_splits
from stratalog.reading.split_scan import DamagedRange, MissingRange, Scanned, scan
from stratalog.segment.finding import Finding

__all__ = [
    "CLUSTER_METADATA_TOPIC",
    "INTERNAL_TOPICS",
    "Check",
    "CheckPlan",
    "DamagedRange",
    "Finding",
    "MissingRange",
    "OffsetRange",
    "Piece",
    "ReadSource",
    "Scanned",
    "Split",
    "TimestampRange",
    "check",
    "plan_checks",
    "plan_splits",
    "scan",
    "timestamp_ranges",
]
