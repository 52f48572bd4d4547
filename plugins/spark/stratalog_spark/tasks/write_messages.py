"""Messages about new segments. Only jobs that write import this module, because it imports the engine (0.1 s)."""

from __future__ import annotations

from typing import Final

from stratalog.writing import Rewritten, StagedSegment
from stratalog_spark.tasks.messages import Message

STAGED: Final = Message[list[StagedSegment]]("staged", list[StagedSegment])
REWRITTEN: Final = Message[Rewritten]("rewritten", Rewritten)
