"""Example of a plugin: a cleanup policy that keeps a number of newest records for each prefix of keys.

Its filter observes the whole log, on local disk and in the tier.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from stratalog import RecordColumns
from stratalog.spi import (
    Action,
    CleanupPolicy,
    Fields,
    LogSummary,
    Provider,
    RecordFilter,
    RewriteJob,
    Section,
    TopicConfig,
    Verdict,
    hookimpl,
    key,
)

_OFFSET_BYTES: Final = 64  # memory for an offset in a deque


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixBudgetSection(Section):
    """Topic settings of the policy."""

    title: ClassVar[str] = "Records for each prefix of keys"

    records: int = key(
        "prefix_budget.records", 1000, at_least=1, doc="Number of newest records to keep for each prefix."
    )
    separator: str = key("prefix_budget.separator", "/", doc="Text that ends the prefix of a key.")


class PrefixBudget(CleanupPolicy):
    """Policy that keeps the newest records of each prefix of keys, and all records without a key."""

    def plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
        """Return a Rewrite for each part of the log with enough new records, and a Keep for each other part.

        A log has two parts: the tier part (its segments in the tier), and the local part (all other segments).
        """
        del now_ms
        return log.rewrites(config)

    def record_filter(self, job: RewriteJob) -> RecordFilter:
        """Return a filter with the topic's settings."""
        section = job.config.sections.get("prefix_budget")
        return Budget(job, section if isinstance(section, PrefixBudgetSection) else PrefixBudgetSection())


class Budget(RecordFilter):
    """Filter that drops a record if the log has ``prefix_budget.records`` later records whose keys have its prefix."""

    fields: ClassVar[Fields] = Fields.OFFSET | Fields.KEY
    observes = "log"

    def __init__(self, job: RewriteJob, section: PrefixBudgetSection) -> None:
        self._separator, self._room = section.separator.encode(), job.memory_bytes // _OFFSET_BYTES
        self._newest: dict[bytes, deque[int]] = defaultdict(lambda: deque(maxlen=section.records))
        self._used = 0

    def observe(self, records: RecordColumns) -> int:
        """Store the newest offsets of each prefix, and return the number of records processed.

        The result is below the number of ``records`` if the memory of the compaction round is full.
        """
        for row, (offset, record_key) in enumerate(zip(records.offset, records.keys(), strict=True)):
            if record_key is None:
                continue
            newest = self._newest[record_key.partition(self._separator)[0]]
            self._used += len(newest) != newest.maxlen
            if self._used > self._room:
                return row
            newest.append(offset)
        return records.count

    def judge(self, records: RecordColumns, verdicts: bytearray) -> None:
        """Write ``Verdict.DROP`` for each record with ``prefix_budget.records`` newer ones of its prefix, else KEEP."""
        for row, (offset, record_key) in enumerate(zip(records.offset, records.keys(), strict=True)):
            newest = None if record_key is None else self._newest.get(record_key.partition(self._separator)[0])
            full = newest is not None and len(newest) == newest.maxlen
            verdicts[row] = Verdict.DROP if full and newest and offset < newest[0] else Verdict.KEEP


@hookimpl
def stratalog_cleanup_policies() -> Iterable[Provider[CleanupPolicy]]:
    """Return the provider of the policy ``prefix_budget``."""
    return [Provider(name="prefix_budget", open=lambda _: PrefixBudget(), topic_section=PrefixBudgetSection)]
