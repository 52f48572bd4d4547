"""Writing many records at once, from many processes: readers see all of them, or none.

For programs that spread one write over many processes. ``WriteTarget`` says where; in each task ``open`` it and ``stage``
records, in one process ``append`` or ``replace`` what all tasks staged: one commit a log, with a mark that keeps a round
from being published twice.
"""

from __future__ import annotations

from stratalog.tier.root import WriteMark
from stratalog.writing.bulk import BulkWriter, Stage
from stratalog.writing.target import WriteTarget
from stratalog.writing.values import MergePlan, Published, Rewritten, Span, StagedSegment

__all__ = [
    "BulkWriter",
    "MergePlan",
    "Published",
    "Rewritten",
    "Span",
    "Stage",
    "StagedSegment",
    "WriteMark",
    "WriteTarget",
]
