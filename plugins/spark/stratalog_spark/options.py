"""Options of reads and writes: those of Spark's Kafka source and sink with their meanings, and some additional ones."""

from __future__ import annotations

import difflib
import json
import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeAlias, TypedDict, TypeVar

from stratalog import Isolation, TopicPartition
from stratalog.errors import ConfigError, UnknownSettingError
from stratalog.reading import ReadSource
from stratalog.spi.commands import option_value
from stratalog.writing import WriteMark, WriteTarget
from stratalog_spark.columns import CORRUPT, HEADERS, KAFKA
from stratalog_spark.pushdown import parsed

_LOGGER: Final = logging.getLogger(__name__)
TIER_PREFIX: Final = "tier."
_KAFKA_PREFIX: Final = "kafka."  # of settings of Kafka's clients
CATALOG_PREFIX: Final = "catalog."
NAMES: Final = (
    "path",
    "tier",
    "config",
    "as_of",
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "includeHeaders",
    "isolation",
    "failOnDataLoss",
    "corruptBatches",
    "minPartitions",
    "maxRecordsPerPartition",
    "columns",
)
PUSHED_NAMES: Final = ("pushedFilter", "pushedCount")  # set by the catalog in the JVM
_LIMITS: Final = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
_COMMITS: Final = "commitGroupOffsets"
STREAM_NAMES: Final = (*_LIMITS, _COMMITS)
# Options of Spark's Kafka source that control its consumers.
_CONSUMER_NAMES: Final = (
    "groupIdPrefix",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
)
_ISOLATION: Final = "kafka.isolation.level"
_GROUP: Final = "kafka.group.id"
_COMPRESSION: Final = "kafka.compression.type"
MERGE_BYTES: Final = 64 << 20  # size that a driver copies in about a second
SINK_NAMES: Final = (
    "path",
    "config",
    "topic",
    "partitions",
    "compression",
    "mergeBytes",
    "staging",
    "takeOver",
    "writeId",
    "writeNumber",
    "checkpointLocation",
)
_IGNORED_SINK_NAMES: Final = ("includeHeaders", *_CONSUMER_NAMES)
_EVERY_NAME: Final = frozenset(name.lower() for name in (*NAMES, *STREAM_NAMES, *SINK_NAMES))
_ENDING: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "as_of")
_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_WAYS: Final = ("subscribe", "subscribePattern", "assign")
_POLICIES: Final = ("fail", "skip", "columns")
EARLIEST: Final = -2
LATEST: Final = -1

Numbers: TypeAlias = dict[TopicPartition, int]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Bound:
    """One end of a read.

    Exactly one attribute besides ``option`` is set. ``everywhere`` is EARLIEST or LATEST. ``offsets`` has an offset (or
    EARLIEST, LATEST) per partition, ``times_ms`` a timestamp per partition, ``time_ms`` one timestamp for all.
    ``option`` is the name of the option that set it.
    """

    option: str
    everywhere: int | None = None
    offsets: Numbers | None = None
    times_ms: Numbers | None = None
    time_ms: int | None = None


class Splitting(TypedDict):
    """Arguments of ``plan_splits`` that options set."""

    isolation: Isolation
    min_splits: int
    split_records: int | None


def _with_catalog(given: Mapping[str, str], suited: Collection[str]) -> tuple[Mapping[str, str], str]:
    """Return the options with those of their catalog that suit, and the catalog's name; the name is empty without one."""
    catalog = {name[len(CATALOG_PREFIX) :]: name for name in given if name.lower().startswith(CATALOG_PREFIX)}
    own = {name: value for name, value in given.items() if name not in catalog.values()}
    known, there = {name.lower() for name in suited}, {name.lower() for name in own}
    for name, full in catalog.items():
        lower = name.lower()
        if lower != "name" and lower not in there and (lower in known or lower not in _EVERY_NAME):
            own[name] = given[full]
    return own, next((given[full] for name, full in catalog.items() if name.lower() == "name"), "")


class Given:
    """Options as Spark passes them, with names in any case.

    Args:
        given: the options. Those of a catalog have the prefix ``catalog.``; the others override them.
        names: valid names, in addition to ``tier.NAME`` and ``kafka.NAME``.
        used: names of ``kafka.NAME`` that have an effect.
        ignored: valid names that have no effect, such as options of Spark's Kafka source.
        unsuited: valid names that are left out if they are those of a catalog, which may be for other reads.

    Raises:
        UnknownSettingError: a name is unknown; the message contains the nearest valid one.
    """

    def __init__(
        self,
        given: Mapping[str, str],
        names: Iterable[str],
        *,
        used: Collection[str] = (),
        ignored: Iterable[str] = (),
        unsuited: Iterable[str] = (),
    ) -> None:
        given, self.catalog = _with_catalog(given, {*names} - {*unsuited})
        values = {name.lower(): str(given[name]) for name in given}
        without_effect = {name.lower() for name in ignored}
        without_effect |= {name for name in values if _has_prefix(name, _KAFKA_PREFIX) and name not in used}
        self._ignored = sorted(name for name in given if name.lower() in without_effect)
        # Without these, because settings of Kafka's clients may contain credentials, which tasks do not need.
        self._values = {name: value for name, value in values.items() if name not in without_effect}
        self._check_names({name.lower(): name for name in (*names, *ignored)})

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._values,)  # Spark pickles the text of the options, which is checked again

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(sorted(self._values))})"  # names only: values may be credentials

    def warn_of_ignored(self) -> None:
        """Log one warning that names the given options without effect. Called once for each query."""
        if self._ignored:
            _LOGGER.warning('options without effect in format("stratalog"): %s', ", ".join(self._ignored))

    def _get(self, name: str) -> str | None:
        return self._values.get(name.lower())

    def _check_names(self, known: Mapping[str, str]) -> None:
        for name in self._values:
            if name not in known and not any(_has_prefix(name, prefix) for prefix in (TIER_PREFIX, _KAFKA_PREFIX)):
                near = difflib.get_close_matches(name, known, n=1)
                raise UnknownSettingError(name, 'format("stratalog")', known[near[0]] if near else "")

    def _tier_options(self) -> dict[str, object]:
        return {
            name.removeprefix(TIER_PREFIX): option_value(value)
            for name, value in self._values.items()
            if name.startswith(TIER_PREFIX)
        }

    def _switch(self, name: str, *, default: bool) -> bool:
        return self._choice(name, str(default).lower(), ("true", "false")) == "true"

    def _choice(self, name: str, usual: str, choices: tuple[str, ...]) -> str:
        value = (self._get(name) or usual).strip().lower()
        if value not in choices:
            raise ConfigError(f"option {name}={value!r} is not one of {', '.join(choices)}")
        return value

    def _count(self, name: str) -> int | None:
        """Return a number of 1 or more, or None if the option is not given."""
        text = self._get(name)
        number = None if text is None else _natural(name, text)
        if number is not None and number < 1:
            raise ConfigError(f"option {name} must be 1 or more")
        return number


class Options(Given):
    """Checked options of one read.

    Args:
        given: options as Spark passes them.
        streaming: True for a stream, which has no end and may begin at the latest record; None for either kind.

    Raises:
        UnknownSettingError: a name is unknown; the message contains the nearest valid one.
        ConfigError: a value is wrong, or two options contradict each other.
    """

    def __init__(self, given: Mapping[str, str], *, streaming: bool | None = False) -> None:
        unsuited = {True: _ENDING, False: (_COMMITS,), None: ()}[streaming]
        super().__init__(
            given,
            (*NAMES, *STREAM_NAMES, *PUSHED_NAMES),
            used=(_ISOLATION, _GROUP) if _asks_for_commits(given) else (_ISOLATION,),
            ignored=(*_CONSUMER_NAMES, *_LIMITS) if streaming is False else _CONSUMER_NAMES,
            unsuited=unsuited,
        )
        self._streaming = streaming
        self._check_kind(unsuited, streaming=streaming)
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
        self.max_delay_ms = _duration_ms("maxTriggerDelay", self._get("maxTriggerDelay") or "15m")
        if self.max_offsets and self.min_offsets and self.min_offsets > self.max_offsets:
            raise ConfigError("option minOffsetsPerTrigger is above maxOffsetsPerTrigger")
        self.columns = tuple(name.strip() for name in (self._get("columns") or "").split(",") if name.strip())
        pushed = self._get("pushedFilter")
        self.pushed = None if pushed is None else parsed("pushedFilter", pushed)
        self.counts = self._switch("pushedCount", default=False)

    def __reduce__(self) -> tuple[object, ...]:
        return _options, (self._values, self._streaming)

    @property
    def splitting(self) -> Splitting:
        """Arguments of ``plan_splits``."""
        return {
            "isolation": self.isolation,
            "min_splits": self.min_partitions,
            "split_records": self.max_records,
        }

    @property
    def shown(self) -> tuple[str, ...]:
        """Columns of the option, or those of Spark's Kafka source and those that other options add."""
        corrupt = CORRUPT if self.corrupt == "columns" else ()
        return self.columns or (*KAFKA, *((HEADERS,) if self.headers else ()), *corrupt)

    def _check_kind(self, unsuited: Iterable[str], *, streaming: bool | None) -> None:
        for name in unsuited:
            if self._get(name) is not None:
                raise ConfigError(f"option {name} is for a {'batch' if streaming else 'stream'} alone")

    def _group(self) -> str | None:
        """Return the group whose offsets the query commits, or None."""
        if not self._switch(_COMMITS, default=False):
            return None
        group = self._get(_GROUP)
        if not group:
            raise ConfigError(f"option {_COMMITS} needs the name of a group: set option {_GROUP}")
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
            as_of=None if as_of is None else _moment(as_of),
            config=self._get("config"),
        )

    def _topics(self) -> tuple[str, str]:
        given = [name for name in _WAYS if self._get(name) is not None]
        if len(given) != 1:
            raise ConfigError(f"give one of {', '.join(_WAYS)}" + (f", not {' and '.join(given)}" if given else ""))
        text = self._get(given[0]) or ""
        if given[0] == "subscribePattern":
            _parsed("subscribePattern", text, re.compile)
        elif given[0] == "assign":
            assigned("assign", text)
        elif not any(name.strip() for name in text.split(",")):
            raise ConfigError("option subscribe names no topic")
        return given[0], text

    def _bound(self, side: str, usual: int, *, any_word: bool = False) -> Bound:
        """Return one end, from the most specific given option, as Kafka's source does.

        ``any_word`` allows both earliest and latest.
        """
        option = f"{side}Timestamp"
        text = self._get(option)
        if text is not None:
            return Bound(option, time_ms=_natural(option, text))
        option = f"{side}OffsetsByTimestamp"
        text = self._get(option)
        if text is not None:
            return Bound(option, times_ms=_numbers(option, text, at_least=0))
        option = f"{side}Offsets"
        text = self._get(option)
        words = {"earliest": EARLIEST, "latest": LATEST}
        everywhere = usual if text is None else words.get(text.strip().lower())
        found = None if everywhere is not None else _numbers(option, text or "", at_least=EARLIEST)
        other = EARLIEST + LATEST - usual
        if not any_word and (everywhere == other or (found and other in found.values())):
            word = "latest (-1)" if other == LATEST else "earliest (-2)"
            raise ConfigError(f"option {option} of a batch query cannot be {word}")
        return Bound(option, everywhere=everywhere, offsets=found)


def _has_prefix(name: str, prefix: str) -> bool:
    return name.startswith(prefix) and name != prefix


def _asks_for_commits(given: Mapping[str, str]) -> bool:
    return any(name.lower() == _COMMITS.lower() for name in given)


def _options(given: Mapping[str, str], streaming: bool | None) -> Options:  # noqa: FBT001 - what is pickled is positional
    return Options(given, streaming=streaming)


class SinkOptions(Given):
    """Checked options of one write. Errors are those of ``Options``."""

    def __init__(self, given: Mapping[str, str]) -> None:
        super().__init__(given, SINK_NAMES, used=(_COMPRESSION,), ignored=_IGNORED_SINK_NAMES)
        path = self._get("path")
        if not path:
            raise ConfigError(
                "no target is given: use .save(PATH), .start(PATH), or INSERT INTO t WITH (path = 'PATH', topic = "
                "'TOPIC'); Spark does not pass the options of a table to a sink in Python"
            )
        self.target = WriteTarget(
            path,
            tier_options=self._tier_options(),
            config=self._get("config"),
            staging=self._get("staging"),
            take_over=self._switch("takeOver", default=False),
        )
        self.topic = self._get("topic")
        self.partitions = self._count("partitions")
        self.compression = self._get("compression") or self._get(_COMPRESSION)
        merged = self._get("mergeBytes")
        self.merge_bytes = MERGE_BYTES if merged is None else _natural("mergeBytes", merged)
        if self.partitions and not self.topic:
            raise ConfigError("option partitions creates a topic: add option topic")
        writer, number = self._get("writeId"), self._get("writeNumber")
        if (writer is None) != (number is None):
            raise ConfigError("options writeId and writeNumber need each other: set both")
        self.mark = None if writer is None or number is None else WriteMark(writer, _natural("writeNumber", number))


def assigned(option: str, text: str) -> list[TopicPartition]:
    """Parse ``{"topic": [0, 1]}`` to partitions."""

    def read(text: str) -> list[TopicPartition]:
        return [TopicPartition(topic, _whole(number)) for topic, numbers in _object(text) for number in numbers]

    return _parsed(option, text, read)


def _numbers(option: str, text: str, *, at_least: int) -> Numbers:
    """Parse ``{"topic": {"0": 23}}`` to a number per partition."""

    def read(text: str) -> Numbers:
        return {
            TopicPartition(topic, int(partition)): _whole(number, at_least)
            for topic, numbers in _object(text)
            for partition, number in numbers.items()
        }

    return _parsed(option, text, read)


def _object(text: str) -> list[tuple[str, Any]]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise TypeError("it is not a JSON object")
    return list(found.items())


def _whole(value: object, at_least: int = 0) -> int:
    if type(value) is not int or value < at_least:
        raise ValueError(f"{value!r} is not an integer of {at_least} or more")
    return value


def _natural(option: str, text: str) -> int:
    return _parsed(option, text, lambda text: _whole(int(text)))


def _parsed(option: str, text: str, read: Callable[[str], T]) -> T:
    try:
        return read(text)
    except (ValueError, TypeError, AttributeError, re.error) as error:
        raise ConfigError(f"option {option}={text!r} is not valid: {error}") from None


def _duration_ms(option: str, text: str) -> int:
    """Parse a duration such as ``15m``, ``30s``, ``1h``; a number without a unit is in milliseconds."""
    found = re.fullmatch(r"\s*(\d+)\s*([a-z]*)\s*", text.lower())
    unit = found and (found[2] or "ms")
    if found is None or unit not in _UNITS_MS:
        raise ConfigError(f"option {option}={text!r} is not a duration such as 30s, 15m or 1h")
    return int(found[1]) * _UNITS_MS[unit]


def _moment(text: str) -> int | datetime:
    """Parse a version of the manifest, or a time in ISO 8601, which is in UTC unless it has a zone."""
    return int(text) if text.isdigit() else _parsed("as_of", text, datetime.fromisoformat)
