"""Messages about new segments. Only jobs that write need them: they import the engine, which takes a tenth of a second."""

from __future__ import annotations

from typing import Final

from stratalog.writing import Rewritten, StagedSegment
from stratalog_spark.tasks.messages import Message

STAGED: Final = Message[list[StagedSegment]]("staged", list[StagedSegment])
REWRITTEN: Final = Message[Rewritten]("rewritten", Rewritten)
