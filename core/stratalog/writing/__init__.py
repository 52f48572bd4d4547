"""Bulk writes from many processes: in each log, readers see all records of a write, or none.

``WriteTarget`` describes the target. Each task opens the target, and stages records with ``stage``. Then one process
publishes the staged records of all tasks with ``append`` or ``replace``, by one commit for each log. A ``WriteMark``
(name of a writer and number of a write) prevents that a repeated write is published twice.
"""

from __future__ import annotations

from stratalog.tier.manifest.root import WriteMark
from stratalog.writing.bulk_writer import BulkWriter, commit_offsets
from stratalog.writing.stage import Stage
from stratalog.writing.staged import MergePlan, Published, ReplaceSpan, Rewritten, StagedSegment
from stratalog.writing.write_target import WriteTarget

__all__ = [
    "BulkWriter", "MergePlan", "Published", "ReplaceSpan", "Rewritten", "Stage", "StagedSegment", "WriteMark",
    "WriteTarget", "commit_offsets",
]  # fmt: skip
