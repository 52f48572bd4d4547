"""The stream source for Spark 4.2 and newer. In these releases, a source can limit the size of a micro-batch."""

from __future__ import annotations

from typing import ClassVar, Final

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from stratalog_spark.read.stream import PlainStreamReader
from stratalog_spark.read.stream_offsets import Json, from_json, to_json

_UNLIMITED: Final = (1 << 63) - 1


class LimitedStreamReader(PlainStreamReader, SupportsTriggerAvailableNow):
    """Stream reader that supports limits of micro-batches, and ``Trigger.AvailableNow``."""

    has_limits: ClassVar[bool] = True

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the limit of a micro-batch in the options, or ReadAllAvailable without a limit.

        Triggers may override it.
        """
        options = self._options
        if options.max_offsets or options.min_offsets:
            return ReadMaxRows(options.max_offsets or _UNLIMITED)
        return ReadAllAvailable()

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:  # type: ignore[override] # noqa: N802 - Spark inspects the arguments
        """Return the end offsets of the next micro-batch, which begins at ``start`` and has about ``limit`` offsets.

        The result is ``start`` if ``minOffsetsPerTrigger`` delays the micro-batch. Raises the errors of
        ``Planner.next``.
        """
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return to_json(self._planner.next(from_json(start), rows))

    def reportLatestOffset(self) -> Json:  # noqa: N802 - Spark's name
        """Return the latest end offsets and metrics of the next micro-batch, which Spark shows in the query's progress.

        Spark calls this method after ``latestOffset``. Spark has no other way to show users a text of a Python source.
        """
        return self._planner.report()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Set the end of the query to the current end offsets. Spark calls this method for ``Trigger.AvailableNow``."""
        self._planner.stop_at_current_ends()
