"""Options of a read: the options of Spark's Kafka source with the same meanings, and additional options."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from stratalog import Isolation, TopicPartition
from stratalog.errors import ConfigError
from stratalog.reading import ReadSource
from stratalog_spark.columns.kafka_columns import CORRUPT, HEADERS, KAFKA
from stratalog_spark.columns.pushdown import parse_predicate
from stratalog_spark.options.option_values import (
    Numbers,
    parse_as_of,
    parse_assignment,
    parse_duration_ms,
    parse_natural,
    parse_numbers,
    parse_option,
)
from stratalog_spark.options.spark_options import COMMITS, CONSUMER_NAMES, LIMITS, NAMES, STREAM_NAMES, SparkOptions

PUSHED_NAMES: Final = ("pushedFilter", "pushedCount")  # the catalog in the JVM sets these options
_ISOLATION: Final = "kafka.isolation.level"
_GROUP: Final = "kafka.group.id"
_ENDING: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "as_of")
_STRATEGIES: Final = ("subscribe", "subscribePattern", "assign")
_POLICIES: Final = ("fail", "skip", "columns")
EARLIEST: Final = -2
LATEST: Final = -1


@dataclass(frozen=True, slots=True)
class Bound:
    """Start or end of a read.

    Attributes:
        option: name of the option that set the bound.
        value: for each partition an offset, EARLIEST or LATEST; or EARLIEST or LATEST for all partitions. If
            ``is_time`` is True: a timestamp for each partition, or one timestamp for all partitions.
        is_time: True if ``value`` contains timestamps (ms since 1970).
    """

    option: str
    value: Numbers | int
    is_time: bool = False

    def value_for(self, partition: TopicPartition) -> int:
        """Return the element of ``value`` for a partition."""
        return self.value if isinstance(self.value, int) else self.value[partition]


@dataclass(frozen=True, slots=True)
class TopicSelection:
    """Topics that a query reads.

    Attributes:
        strategy: name of the option that selects the topics.
        text: value of the option.
        names: names of the topics; None for a pattern.
        partitions: partitions to read, sorted; None for all partitions of the topics.
    """

    strategy: str
    text: str
    names: frozenset[str] | None = None
    partitions: tuple[TopicPartition, ...] | None = None

    def __str__(self) -> str:
        return f"{self.strategy[0].upper()}{self.strategy[1:]}[{self.text}]"

    def matches(self, topic: str) -> bool:
        """Return True for a selected topic. A pattern may match any part of the name."""
        return re.search(self.text, topic) is not None if self.names is None else topic in self.names


class Options(SparkOptions):
    """Checked options of one read.

    Args:
        options: options as Spark passes them.
        streaming: True for a streaming query, which has no end and may begin at the latest record. False for a batch
            query. None accepts the options of both kinds of queries.

    Raises:
        UnknownSettingError: a name is unknown. The error text contains the most similar valid name, if there is one.
        ConfigError: a value is wrong, or two options contradict each other.
    """

    def __init__(self, options: Mapping[str, str], *, streaming: bool | None = False) -> None:
        unsuited = {True: _ENDING, False: (COMMITS,), None: ()}[streaming]
        commits = any(name.lower() == COMMITS.lower() for name in options)
        super().__init__(
            options,
            (*NAMES, *STREAM_NAMES, *PUSHED_NAMES),
            effective=(_ISOLATION, _GROUP) if commits else (_ISOLATION,),
            ignored=(*CONSUMER_NAMES, *LIMITS) if streaming is False else CONSUMER_NAMES,
            unsuited=unsuited,
        )
        self._streaming = streaming
        for name in unsuited:
            if self._get(name) is not None:
                raise ConfigError(f"option {name} is only for {'batch' if streaming else 'streaming'} queries")
        self.source = self._source()
        self.topics = self._topics()
        self.start = self._bound("starting", LATEST if streaming else EARLIEST, any_word=streaming is not False)
        self.end = self._bound("ending", LATEST)
        self.or_latest = self._choice("startingOffsetsByTimestampStrategy", "error", ("error", "latest")) == "latest"
        self.headers = self._switch("includeHeaders", default=False)
        self.isolation = Isolation.of(self._get("isolation") or self._get(_ISOLATION) or Isolation.READ_UNCOMMITTED)
        self.fail_on_loss = self._switch("failOnDataLoss", default=True)
        self.corrupt = self._choice("corruptBatches", "fail", _POLICIES)
        self.min_partitions = self._count("minPartitions") or 1
        self.max_records = self._count("maxRecordsPerPartition")
        self.group = self._group()
        self.max_offsets = self._count("maxOffsetsPerTrigger")
        self.min_offsets = self._count("minOffsetsPerTrigger")
        self.max_delay_ms = parse_duration_ms("maxTriggerDelay", self._get("maxTriggerDelay") or "15m")
        if self.max_offsets and self.min_offsets and self.min_offsets > self.max_offsets:
            raise ConfigError("option minOffsetsPerTrigger is above maxOffsetsPerTrigger")
        self.columns = tuple(name.strip() for name in (self._get("columns") or "").split(",") if name.strip())
        predicate = self._get("pushedFilter")
        self.pushed = None if predicate is None else parse_predicate("pushedFilter", predicate)
        self.counts = self._switch("pushedCount", default=False)

    def __reduce__(self) -> tuple[object, ...]:
        return partial(Options, streaming=self._streaming), (self._values,)

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names of the columns in option ``columns``; by default the columns of Spark's Kafka source.

        The options ``includeHeaders`` and ``corruptBatches`` add columns to the default.
        """
        corrupt = CORRUPT if self.corrupt == "columns" else ()
        return self.columns or (*KAFKA, *((HEADERS,) if self.headers else ()), *corrupt)

    def _group(self) -> str | None:
        """Return the group whose offsets the query commits, or None. Raise ConfigError if the group has no name."""
        if not self._switch(COMMITS, default=False):
            return None
        group = self._get(_GROUP)
        if not group:
            raise ConfigError(f"option {COMMITS} needs the name of a group: set option {_GROUP}")
        return group

    def _source(self) -> ReadSource:
        path = self._get("path")
        if not path and self.catalog:
            raise ConfigError(
                f"catalog {self.catalog} has no path: set spark.sql.catalog.{self.catalog}.path, or name the place in the "
                f"query, {self.catalog}.`PATH`.TOPIC"
            )
        if not path:
            raise ConfigError(
                "no source is given: use .load(PATH) with a log directory or the URI of a tier; a table keeps its "
                "location only if it is created without a list of columns, CREATE TABLE t USING stratalog OPTIONS "
                "(...) LOCATION 'PATH'"
            )
        as_of = self._get("as_of")
        return ReadSource(
            path,
            tier=self._get("tier"),
            tier_options=self._tier_options(),
            as_of=None if as_of is None else parse_as_of(as_of),
            config=self._get("config"),
        )

    def _topics(self) -> TopicSelection:
        strategies = [name for name in _STRATEGIES if self._get(name) is not None]
        if len(strategies) != 1:
            raise ConfigError(
                f"give one of {', '.join(_STRATEGIES)}" + (f", not {' and '.join(strategies)}" if strategies else "")
            )
        [strategy] = strategies
        text = self._get(strategy) or ""
        if strategy == "subscribePattern":
            parse_option(strategy, text, re.compile)
            return TopicSelection(strategy, text)
        if strategy == "assign":
            partitions = sorted(set(parse_assignment(strategy, text)))
            names = frozenset(partition.topic for partition in partitions)
            return TopicSelection(strategy, text, names, tuple(partitions))
        names = frozenset(name.strip() for name in text.split(",")) - {""}
        if not names:
            raise ConfigError("option subscribe names no topic")
        return TopicSelection(strategy, text, names)

    def _bound(self, side: str, default: int, *, any_word: bool = False) -> Bound:
        """Return the start or the end of the read, from the options whose names begin with ``side`` (starting, ending).

        ``default`` is EARLIEST or LATEST. If ``any_word`` is False (a batch query), a read must not start at latest or
        end at earliest: both raise ConfigError, also for a single partition. As in Spark's Kafka source, a timestamp
        for all partitions overrides timestamps by partition, and timestamps override offsets.
        """
        option = f"{side}Timestamp"
        text = self._get(option)
        if text is not None:
            return Bound(option, parse_natural(option, text), is_time=True)
        option = f"{side}OffsetsByTimestamp"
        text = self._get(option)
        if text is not None:
            return Bound(option, parse_numbers(option, text, at_least=0), is_time=True)
        option = f"{side}Offsets"
        text = self._get(option)
        word = default if text is None else {"earliest": EARLIEST, "latest": LATEST}.get(text.strip().lower())
        value = parse_numbers(option, text or "", at_least=EARLIEST) if word is None else word
        opposite = EARLIEST + LATEST - default
        if not any_word and opposite in (value.values() if isinstance(value, dict) else (value,)):
            opposite_text = "latest (-1)" if opposite == LATEST else "earliest (-2)"
            raise ConfigError(f"option {option} of a batch query cannot be {opposite_text}")
        return Bound(option, value)
