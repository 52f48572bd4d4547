"""Responses to Spark's catalog in the JVM, encoded as schemas.

Spark's planner gets data from a Python data source only through ``DataSource.schema``. The catalog therefore sends each
request as options of a source. The response is a schema: the names of its columns, or the metadata of its first column,
contain the requested data.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from pyspark.sql.types import LongType, StructType

from stratalog.errors import ConfigError
from stratalog.reading import Piece, Split, plan_splits
from stratalog_spark.columns.kafka_columns import HEADERS, KAFKA, TYPES, canonical, check_names
from stratalog_spark.columns.pushdown import UNORDERED
from stratalog_spark.options.read_options import Options
from stratalog_spark.options.table_options import SPARK_TYPES, with_table
from stratalog_spark.read.plan import planned
from stratalog_spark.read.ranges import resolve

ASK: Final = "ask"
_TOPIC: Final = "stratalog.topic"
_PLAN: Final = "stratalog.plan"
_PROPERTY: Final = "property."
_COLUMN: Final = "column."
_SHOWN_RANGES: Final = 8
_WHOLE_BYTES: Final = 1 << 62
_OF_SPARK: Final = frozenset({"provider", "owner", "location", "comment", "external", "is_managed_location"})


def is_request(given: Mapping[str, str]) -> bool:
    """Return True if the options are a request of the catalog in the JVM, not options of a read or a write."""
    return ASK in given


def response(given: Mapping[str, str]) -> StructType:
    """Return the response to a request of the catalog, encoded as a schema.

    Raises:
        ConfigError, UnknownSettingError: an option of the catalog is wrong, or a topic cannot be created as requested.
        StorageError: the directory or tier cannot be read, or the topic cannot be written.
    """
    request = {name: value for name, value in given.items() if name != ASK}
    return {"topics": _topics, "topic": _topic, "create": _create, "plan": _plan}[given[ASK]](request)


def _topics(request: Mapping[str, str]) -> StructType:
    """Return a schema with one column for each topic; the column has the topic's name."""
    found = StructType()
    with Options({**request, "subscribePattern": ".*"}).source.open(peek=True) as reader:
        for name in reader.topics():
            found.add(name, LongType())
    return found


def _topic(request: Mapping[str, str]) -> StructType:
    """Return the columns of a topic's table, or no columns if the topic does not exist.

    The metadata of the first column contains location, topic id, number of partitions and changed settings.
    """
    given = {name: value for name, value in request.items() if name != "topic"}
    options, found = Options({**given, "subscribePattern": ".*"}), StructType()
    with options.source.open(peek=True) as reader:
        topic = reader.topics().get(request["topic"])
        config = None if topic is None else topic.config
    if topic is None or config is None:
        return found
    about = {
        "location": options.source.location,
        "topic.id": str(topic.topic_id or ""),
        "partitions": str(len(topic.partitions)),
        "config": json.dumps(config.to_mapping(only_changed=True), default=str),
    }
    for name in check_names(options.columns or (*KAFKA, HEADERS)):
        found.add(name, SPARK_TYPES[TYPES[canonical(name)]], nullable=True, metadata={_TOPIC: about})
        about = {}
    return found


def _create(request: Mapping[str, str]) -> StructType:
    """Create a topic whose settings are the properties of a table. Return a schema without columns."""
    given = {name: value for name, value in request.items() if not name.startswith((_PROPERTY, _COLUMN))}
    for name, kind in _prefixed(request, _COLUMN).items():
        if TYPES.get(name) != kind:
            columns = ", ".join(f"{column} {TYPES[column]}" for column in (*KAFKA, HEADERS))
            raise ConfigError(f"a topic has no column {name} {kind}: the columns of each topic are {columns}")
    config: dict[str, object] = {}
    partitions = "1"
    for name, value in _prefixed(request, _PROPERTY).items():
        if name == "partitions":
            partitions = value
        elif name not in _OF_SPARK and not name.startswith("option."):
            config[name] = value
    from stratalog_spark.options.write_options import SinkOptions  # noqa: PLC0415 - imports the engine

    options = SinkOptions({**given, "partitions": partitions})
    assert options.topic is not None  # from the catalog
    assert options.partitions is not None  # as above
    with options.target.open() as writer:
        writer.create_topic(options.topic, options.partitions, config)
    return StructType()


def _prefixed(request: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {name[len(prefix) :]: value for name, value in request.items() if name.startswith(prefix)}


def _plan(request: Mapping[str, str]) -> StructType:
    """Return a schema with one column. Its metadata contains the description of a read, and the size in bytes."""
    schema = StructType.fromJson(json.loads(request["schema"]))
    given = {name: value for name, value in request.items() if name != "schema"}
    options = Options(with_table(given, schema, streaming=False))
    with options.source.open(peek=True) as reader:
        ranges = list(resolve(options, reader))
        splits = planned(options, reader, ranges)
        whole = splits
        if options.pushed is not None or options.counts:
            whole = plan_splits(reader, ranges, isolation=options.isolation, split_bytes=_WHOLE_BYTES)
    found = {
        "description": described(options, schema.names, _pieces(splits), _pieces(whole)),
        "size_bytes": sum(split.size_bytes for split in splits),
    }
    return StructType().add("plan", LongType(), nullable=True, metadata={_PLAN: found})


def _pieces(splits: Iterable[Split]) -> list[Piece]:
    return [piece for split in splits for piece in split.pieces]


def described(options: Options, columns: Sequence[str], read: Sequence[Piece], whole: Sequence[Piece]) -> str:
    """Return the text that Spark's ``explain`` shows for a read.

    Args:
        options: options of the read.
        columns: names of the columns.
        read: parts of segments that the plan reads.
        whole: parts of segments that the plan would read without a pushed predicate or count.
    """
    spans: dict[str, list[int]] = {}
    for piece in read:
        span = spans.setdefault(str(piece.log), [piece.start, piece.end])
        span[:] = min(span[0], piece.start), max(span[1], piece.end)
    shown = [f"{name} [{start}, {end})" for name, (start, end) in list(spans.items())[:_SHOWN_RANGES]]
    if len(spans) > _SHOWN_RANGES:
        shown.append(f"and {len(spans) - _SHOWN_RANGES} more")
    left = [piece for piece in read if piece.records is None]
    texts = [
        f"{options.topics[0]} {options.topics[1]} of {options.source.location}",
        f"columns {', '.join(columns)}",
        f"pushed {options.pushed}" if options.pushed else "",
        "count" if options.counts else "",
        f"ranges {', '.join(shown) or 'none'}",
        f"segments {_segments(left)} of {_segments(whole)}, bytes {_bytes(left)} of {_bytes(whole)}",
        f"segments counted in manifests {len(read) - len(left)}" if len(left) < len(read) else "",
        UNORDERED if options.pushed and options.pushed.has_late_bound and len(left) == len(whole) else "",
    ]
    return f"[{'; '.join(text for text in texts if text)}]"


def _segments(pieces: Iterable[Piece]) -> int:
    return len({(piece.log, piece.base_offset) for piece in pieces})


def _bytes(pieces: Iterable[Piece]) -> int:
    return sum(piece.span_bytes for piece in pieces)
