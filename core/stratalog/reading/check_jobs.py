"""Check of a tier by many processes: one process checks roots and lists objects, the others read the objects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from heapq import heapreplace
from typing import Final, TypeAlias

from stratalog.config.topic import TopicConfig
from stratalog.errors import ConfigError
from stratalog.model.arguments import Positive, checked
from stratalog.model.names import TopicId, TopicPartition
from stratalog.reading.component_host import split_scheme
from stratalog.reading.open_reader import open_host, open_tier
from stratalog.reading.read_source import ReadSource
from stratalog.reading.split_plan import SMALLEST_SPLIT_BYTES
from stratalog.segment.components import Components
from stratalog.segment.finding import Finding
from stratalog.spi.layouts import StoredSegment
from stratalog.tier.store.log_listing import select_topics
from stratalog.tier.tier import Tier
from stratalog.tier.upkeep.tier_check import TierLogCheck, is_missing

_SHALLOW_BYTES: Final = 1 << 20  # approximate cost of a segment's small files, in bytes of a .log file


_Item: TypeAlias = tuple[TopicPartition, TopicId, StoredSegment]
"""A segment to check, with its log and the id of its topic."""


@dataclass(frozen=True, slots=True)
class Check:
    """Segments of one or more logs that one task checks. Can be pickled; contains no secrets.

    The task reads the small files of the segments, such as indexes. If ``deep`` is True, it also reads every ``.log``
    file and checks its hash and each batch.
    """

    segments: tuple[_Item, ...]
    deep: bool

    @property
    def size_bytes(self) -> int:
        """Approximate number of bytes that the task reads."""
        return sum(_weight(segment, deep=self.deep) for _, _, segment in self.segments)


@dataclass(frozen=True, slots=True)
class CheckPlan:
    """Result of ``plan_checks``: the logs, the findings so far, and the checks that tasks must run by ``check``."""

    logs: tuple[TopicPartition, ...]
    found: tuple[Finding, ...]
    checks: tuple[Check, ...]


@checked
def plan_checks(
    source: ReadSource, *, topics: Iterable[str] | None = None, deep: bool = True, checks: Positive = 1
) -> CheckPlan:
    """Check all roots, pages and object sizes of a tier, and divide its segments into checks of their content.

    A segment with a missing object is in no check; it is already in the findings of the plan.

    Args:
        source: a tier, without ``as_of``.
        topics: check only these topics; None checks all.
        deep: True to read every ``.log`` file in the checks, False to read only the small files.
        checks: maximal number of checks, each of which reads about the same number of bytes. There are fewer checks if
            each would read less than about 4 MiB.

    Raises:
        ConfigError: the source is not a tier, or is an earlier state of a tier (``as_of``); ``checks`` is below 1; or
            the key of a root's MAC is missing.
        UnknownTopicError: a topic does not exist.
        StoreError: the tier cannot be read.
        UnknownComponentError: a newer stratalog wrote an object, or a layout is not installed.
    """
    if not split_scheme(source.location)[0] or source.as_of is not None:
        raise ConfigError("checks need the current state of a tier: give its URI without as_of")
    findings, segments, logs = list[Finding](), list[_Item](), list[TopicPartition]()
    with _open_source(source) as (tier, components):
        selected_topics = None if topics is None else set(topics)
        for name in select_topics(sorted(tier.logs()), selected_topics, tier.uri):
            logs.append(name.log)
            checked_log = TierLogCheck(tier.log(*name), components, contents=deep)
            findings += checked_log.roots()
            for item in checked_log.segments():
                if isinstance(item, Finding):
                    findings.append(item)
                    continue
                object_findings = checked_log.presence(item)
                findings += object_findings
                if not is_missing(object_findings):
                    segments.append((name.log, name.topic_id, item))
            findings += checked_log.orphans()
    return CheckPlan(tuple(logs), tuple(findings), tuple(_divide(segments, checks, deep=deep)))


@checked
def check(source: ReadSource, work: Check) -> Iterator[tuple[StoredSegment, list[Finding]]]:
    """Run one check of a plan, in any process; yield each segment with its findings: [] if it has no damage.

    Raises:
        ConfigError: the key of a segment is missing.
        StoreError: the tier cannot be read.
        UnknownComponentError: the layout of a segment is not installed.
    """
    with _open_source(source) as (tier, components):
        for log, topic_id, segment in work.segments:
            yield segment, TierLogCheck(tier.log(log, topic_id), components, contents=work.deep).contents(segment)


@contextmanager
def _open_source(source: ReadSource) -> Iterator[tuple[Tier, Components]]:
    with (
        open_host(source.settings()) as host,
        open_tier(host, source.location, source.tier_options, read_only=True) as tier,
    ):
        yield tier, host.components(TopicConfig())


def _divide(segments: Sequence[_Item], checks: int, *, deep: bool) -> Iterator[Check]:
    """Return checks of about equal size: each segment, largest first, goes to the smallest check so far."""
    total = sum(_weight(segment, deep=deep) for _, _, segment in segments)
    count = min(checks, len(segments), -(-total // SMALLEST_SPLIT_BYTES))
    groups: list[list[_Item]] = [[] for _ in range(count)]
    loads = [(0, number) for number in range(len(groups))]  # a heap
    for item in sorted(segments, key=lambda item: -item[2].info.size_bytes):
        load, smallest = loads[0]
        groups[smallest].append(item)
        heapreplace(loads, (load + _weight(item[2], deep=deep), smallest))
    return (Check(tuple(group), deep) for group in groups)


def _weight(segment: StoredSegment, *, deep: bool) -> int:
    return _SHALLOW_BYTES + (segment.info.size_bytes if deep else 0)
