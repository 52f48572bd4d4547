"""Bulk writes from many processes: readers see all records of a write, or none.

For programs that spread one write over many processes. ``WriteTarget`` names the target. Each task calls ``open`` and
``stage`` to write records; then one process calls ``append`` or ``replace`` with what all tasks staged. This is one commit for
each log. A mark prevents that a round is published twice.
"""

from __future__ import annotations

from stratalog.tier.manifest.root import WriteMark
from stratalog.writing.bulk_writer import BulkWriter, Stage
from stratalog.writing.commit_offsets import commit_offsets
from stratalog.writing.staged import MergePlan, Published, ReplaceSpan, Rewritten, StagedSegment
from stratalog.writing.write_target import WriteTarget

__all__ = [
    "BulkWriter",
    "MergePlan",
    "Published",
    "ReplaceSpan",
    "Rewritten",
    "Stage",
    "StagedSegment",
    "WriteMark",
    "WriteTarget",
    "commit_offsets",
]
