"""Options of a write: ``topic`` and ``kafka.compression.type`` as in Spark's Kafka sink, and options of stratalog.

The other options of the Kafka sink are accepted, but have no effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from stratalog.errors import ConfigError
from stratalog.writing import WriteMark, WriteTarget
from stratalog_spark.options.option_values import parse_natural
from stratalog_spark.options.spark_options import CONSUMER_NAMES, SINK_NAMES, SparkOptions

_COMPRESSION: Final = "kafka.compression.type"
MERGE_BYTES: Final = 64 << 20  # a driver copies this size in about a second
_IGNORED_SINK_NAMES: Final = ("includeHeaders", *CONSUMER_NAMES)


class SinkOptions(SparkOptions):
    """Checked options of one write.

    ``overwrite`` is True for a write that would replace the rows of the target.

    Raises UnknownSettingError for an unknown name, and ConfigError if a value is wrong or missing, or if ``overwrite``
    is True: a log can only be appended to.
    """

    def __init__(self, options: Mapping[str, str], *, overwrite: bool = False) -> None:
        if overwrite:
            raise ConfigError('a log can only be appended to: use mode("append"), or output mode append or update')
        super().__init__(options, SINK_NAMES, effective=(_COMPRESSION,), ignored=_IGNORED_SINK_NAMES)
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
        merge_bytes = self._get("mergeBytes")
        self.merge_bytes = MERGE_BYTES if merge_bytes is None else parse_natural("mergeBytes", merge_bytes)
        if self.partitions and not self.topic:
            raise ConfigError("option partitions creates a topic: add option topic")
        writer, number = self._get("writeId"), self._get("writeNumber")
        if (writer is None) != (number is None):
            raise ConfigError("options writeId and writeNumber need each other: set both")
        self.mark = (
            None if writer is None or number is None else WriteMark(writer, parse_natural("writeNumber", number))
        )
