"""Example of a plugin: a cleanup policy in pure Python that finds the latest record of each key with pyarrow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Final

from stratalog import RecordColumns
from stratalog.errors import PluginImportError
from stratalog.spi import (
    Action,
    CleanupPolicy,
    Fields,
    LogSummary,
    OpenContext,
    Provider,
    RecordFilter,
    RewriteJob,
    TopicConfig,
    Verdict,
    arrow_batches,
    hookimpl,
)

_ROW_BYTES: Final = 64  # memory for a row in addition to its key


class ArrowLatest(CleanupPolicy):
    """Policy that keeps the latest record of each key in each part of a log, and drops records without a key.

    A log has two parts: the tier part (its segments in the tier), and the local part (all other segments).
    """

    def __init__(self, pyarrow: Any) -> None:
        self._pyarrow = pyarrow

    def plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
        """Return a Rewrite for each part of the log with enough new records, and a Keep for each other part."""
        del now_ms
        return log.rewrites(config)

    def record_filter(self, job: RewriteJob) -> RecordFilter:
        """Return a filter that decides on all records of a part of the log before it judges the first one."""
        return LatestInPart(job, self._pyarrow)


class LatestInPart(RecordFilter):
    """Filter that groups the offsets of a part of a log by key once, and then looks up the verdict of each offset."""

    fields: ClassVar[Fields] = Fields.OFFSET | Fields.KEY | Fields.VALUE
    observes = "part"

    def __init__(self, job: RewriteJob, pyarrow: Any) -> None:
        self._pa, self._job, self._left_bytes = pyarrow, job, job.memory_bytes
        self._batches: list[Any] = []
        self._verdicts: bytearray | None = None  # one verdict for each offset from job.start on

    def observe(self, records: RecordColumns) -> int:
        """Store offsets and keys as columns; return the number of records.

        The result is 0 if the stored columns exceed the memory of the compaction round.
        """
        for batch in arrow_batches(records, 0, ["offset", "key"]):
            self._left_bytes -= batch.nbytes + _ROW_BYTES * batch.num_rows
            self._batches.append(batch)
        return records.count if self._left_bytes >= 0 else 0

    def judge(self, records: RecordColumns, verdicts: bytearray) -> None:
        """Write the verdict of each record: ``Verdict.DROP_AT_HORIZON`` for a tombstone that ``_judge_offsets`` keeps."""
        if self._verdicts is None:
            self._verdicts = self._judge_offsets()
        all_verdicts, start = self._verdicts, self._job.start
        if not records.count:
            return
        first, last = records.offset[0] - start, records.offset[-1] - start
        if last - first + 1 == records.count:
            verdicts[:] = all_verdicts[first : last + 1]
        else:
            verdicts[:] = bytes([all_verdicts[offset - start] for offset in records.offset])
        if min(records.value_size) < 0:
            for row, size in enumerate(records.value_size):
                if size < 0 and verdicts[row] == Verdict.KEEP:
                    verdicts[row] = Verdict.DROP_AT_HORIZON

    def _judge_offsets(self) -> bytearray:
        """Return a verdict for each offset of the compaction round: only the latest record of each key is kept."""
        verdicts = bytearray([Verdict.DROP]) * (self._job.end - self._job.start)
        if self._batches:
            keys = self._pa.Table.from_batches(self._batches)
            self._batches = []
            latest = keys.filter(keys["key"].is_valid()).group_by("key").aggregate([("offset", "max")])
            for chunk in latest["offset_max"].chunks:
                for offset in chunk.to_pylist():
                    verdicts[offset - self._job.start] = Verdict.KEEP
        return verdicts


def _open(context: OpenContext) -> CleanupPolicy:
    del context
    try:
        import pyarrow as pa  # noqa: PLC0415 - a component imports when it opens
    except ImportError as error:
        raise PluginImportError("pyarrow is not installed", "arrow_latest", "stratalog-arrow-latest") from error
    return ArrowLatest(pa)


@hookimpl
def stratalog_cleanup_policies() -> Iterable[Provider[CleanupPolicy]]:
    """Return the provider of the policy ``arrow_latest``."""
    return [Provider(name="arrow_latest", open=_open)]
