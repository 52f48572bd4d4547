"""Writing many records at once, from many processes: readers see all of them, or none.

For programs that spread one write over many processes. ``WriteTarget`` says where; in each task ``open`` it and ``stage``
records, in one process ``append`` or ``replace`` what all tasks staged: one commit a log, with a mark that keeps a round
from being published twice.
"""

from __future__ import annotations

from stratalog.tier.manifest.root import WriteMark
from stratalog.writing.bulk_writer import BulkWriter, Stage
from stratalog.writing.staged import MergePlan, Published, Rewritten, Span, StagedSegment
from stratalog.writing.write_target import WriteTarget

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
