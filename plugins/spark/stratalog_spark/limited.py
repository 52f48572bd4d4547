"""The stream source where Spark lets a source limit a micro-batch: 4.2 and newer."""

from __future__ import annotations

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from stratalog_spark.stream import UNLIMITED, Json, PlainStreamReader, from_json, to_json


class LimitedStreamReader(PlainStreamReader, SupportsTriggerAvailableNow):
    """As ``PlainStreamReader``, with limits and ``Trigger.AvailableNow``."""

    def check_limits(self) -> None:
        """They are kept to."""

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """What the options say; a trigger that wants everything overrules it."""
        options = self._options
        if options.max_offsets or options.min_offsets:
            return ReadMaxRows(options.max_offsets or UNLIMITED)
        return ReadAllAvailable()

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:  # type: ignore[override] # noqa: N802 - Spark looks at the arguments
        """Where the next micro-batch ends."""
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return to_json(self._planner.next(from_json(start), rows))

    def reportLatestOffset(self) -> Json:  # noqa: N802 - Spark's name
        """How far there are records, for the query's progress."""
        return to_json(self._planner.ends())

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Stop at what is there now."""
        self._planner.stop_at_what_is_there()
