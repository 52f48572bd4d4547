"""Options of a query as Spark passes them: case-insensitive names, ignored names, and options of a catalog."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from stratalog.errors import ConfigError, UnknownSettingError
from stratalog.spi.commands import option_value
from stratalog_spark.options.option_values import parse_natural

_LOGGER: Final = logging.getLogger(__name__)
TIER_PREFIX: Final = "tier."
_KAFKA_PREFIX: Final = "kafka."  # prefix of settings of Kafka's clients
CATALOG_PREFIX: Final = "catalog."
NAMES: Final = (
    "path", "tier", "config", "as_of",  # the source
    "subscribe", "subscribePattern", "assign",
    "startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy",
    "endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp",
    "isolation", "failOnDataLoss", "corruptBatches",
    "minPartitions", "maxRecordsPerPartition",
    "includeHeaders", "columns",
)  # fmt: skip
LIMITS: Final = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
COMMITS: Final = "commitGroupOffsets"
STREAM_NAMES: Final = (*LIMITS, COMMITS)
# Options of Spark's Kafka source that control its consumers.
CONSUMER_NAMES: Final = (
    "groupIdPrefix", "kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs"
)  # fmt: skip
SINK_NAMES: Final = (
    "path", "config", "staging", "takeOver",  # the target
    "topic", "partitions", "compression", "mergeBytes",
    "writeId", "writeNumber", "checkpointLocation",
)  # fmt: skip
_EVERY_NAME: Final = frozenset(name.lower() for name in (*NAMES, *STREAM_NAMES, *SINK_NAMES))


def _merge_catalog(options: Mapping[str, str], suited: Collection[str]) -> tuple[Mapping[str, str], str]:
    """Return two values: the merged options of a query and of its catalog, and the catalog's name ("" if none).

    Options of the query override options of the catalog. Options of the catalog that are valid only for other kinds of
    queries, and are not in ``suited``, are ignored. Unknown names are kept.
    """
    catalog_names = {name[len(CATALOG_PREFIX) :]: name for name in options if name.lower().startswith(CATALOG_PREFIX)}
    merged = {name: value for name, value in options.items() if name not in catalog_names.values()}
    suited_names, query_names = {name.lower() for name in suited}, {name.lower() for name in merged}
    for name, full_name in catalog_names.items():
        lower = name.lower()
        if lower != "name" and lower not in query_names and (lower in suited_names or lower not in _EVERY_NAME):
            merged[name] = options[full_name]
    return merged, next((options[full_name] for name, full_name in catalog_names.items() if name.lower() == "name"), "")


class SparkOptions:
    """Options as Spark passes them. Names are case-insensitive.

    Args:
        options: the options. Options of a catalog have the prefix ``catalog.``; options without this prefix override
            them.
        names: valid names, in addition to ``tier.NAME`` and ``kafka.NAME``.
        effective: names of the form ``kafka.NAME`` that have an effect.
        ignored: valid names that have no effect, such as options of Spark's Kafka source.
        unsuited: valid names for other kinds of queries. They are ignored if the catalog sets them.

    Raises:
        UnknownSettingError: a name is unknown. The error text contains the most similar valid name, if there is one.
    """

    def __init__(
        self,
        options: Mapping[str, str],
        names: Iterable[str],
        *,
        effective: Collection[str] = (),
        ignored: Iterable[str] = (),
        unsuited: Iterable[str] = (),
    ) -> None:
        options, self.catalog = _merge_catalog(options, {*names} - {*unsuited})
        values = {name.lower(): str(options[name]) for name in options}
        without_effect = {name.lower() for name in ignored}
        without_effect |= {name for name in values if _has_prefix(name, _KAFKA_PREFIX) and name not in effective}
        self._ignored = sorted(name for name in options if name.lower() in without_effect)
        # Drop options without effect: settings of Kafka's clients may contain credentials, which tasks do not need.
        self._values = {name: value for name, value in values.items() if name not in without_effect}
        self._check_names({name.lower(): name for name in (*names, *ignored)})

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._values,)  # the copy checks the text of the options again

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(sorted(self._values))})"  # names only: values may be credentials

    def warn_of_ignored(self) -> None:
        """Log one warning with the names of the options that have no effect.

        Log nothing if there are no such options.
        """
        if self._ignored:
            _LOGGER.warning('options without effect in format("stratalog"): %s', ", ".join(self._ignored))

    def _get(self, name: str) -> str | None:
        return self._values.get(name.lower())

    def _check_names(self, valid_names: Mapping[str, str]) -> None:
        for name in self._values:
            if name not in valid_names and not any(
                _has_prefix(name, prefix) for prefix in (TIER_PREFIX, _KAFKA_PREFIX)
            ):
                similar = difflib.get_close_matches(name, valid_names, n=1)
                raise UnknownSettingError(name, 'format("stratalog")', valid_names[similar[0]] if similar else "")

    def _tier_options(self) -> dict[str, object]:
        return {
            name.removeprefix(TIER_PREFIX): option_value(value)
            for name, value in self._values.items()
            if name.startswith(TIER_PREFIX)
        }

    def _switch(self, name: str, *, default: bool) -> bool:
        return self._choice(name, str(default).lower(), ("true", "false")) == "true"

    def _choice(self, name: str, default: str, choices: tuple[str, ...]) -> str:
        value = (self._get(name) or default).strip().lower()
        if value not in choices:
            raise ConfigError(f"option {name}={value!r} is not one of {', '.join(choices)}")
        return value

    def _count(self, name: str) -> int | None:
        """Return a number of 1 or more, or None if the option is not set. Raise ConfigError for any other value."""
        text = self._get(name)
        number = None if text is None else parse_natural(name, text)
        if number is not None and number < 1:
            raise ConfigError(f"option {name} must be 1 or more")
        return number


def _has_prefix(name: str, prefix: str) -> bool:
    return name.startswith(prefix) and name != prefix
