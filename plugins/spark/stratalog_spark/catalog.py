"""Responses to requests of the catalog in the JVM, encoded as schemas.

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
from stratalog.reading import Piece
from stratalog_spark.columns.kafka_columns import HEADERS, KAFKA, TYPES, canonical, check_names
from stratalog_spark.columns.pushdown import UNORDERED
from stratalog_spark.options.read_options import Options
from stratalog_spark.options.table_options import SPARK_TYPES, merge_table_options
from stratalog_spark.read.plan import plan_ranges, plan_segments
from stratalog_spark.read.ranges import resolve

ASK: Final = "ask"
_TOPIC: Final = "stratalog.topic"
_PLAN: Final = "stratalog.plan"
_PROPERTY: Final = "property."
_COLUMN: Final = "column."
_MOST_RANGES: Final = 8
_SPARK_PROPERTIES: Final = frozenset({"provider", "owner", "location", "comment", "external", "is_managed_location"})


def response(options: Mapping[str, str]) -> StructType:
    """Return the response to a request of the catalog, encoded as a schema.

    Raises:
        ConfigError, UnknownSettingError: an option of the catalog is wrong, or a topic cannot be created as requested.
        StorageError: the directory or tier cannot be read, or the topic cannot be written.
    """
    request = {name: value for name, value in options.items() if name != ASK}
    return {"topics": _topics, "topic": _topic, "create": _create, "plan": _plan}[options[ASK]](request)


def _topics(request: Mapping[str, str]) -> StructType:
    """Return a schema with one column for each topic; the column has the topic's name."""
    schema = StructType()
    with Options({**request, "subscribePattern": ".*"}).source.open(peek=True) as reader:
        for name in reader.topics():
            schema.add(name, LongType())
    return schema


def _topic(request: Mapping[str, str]) -> StructType:
    """Return the columns of a topic's table, or no columns if the topic does not exist.

    The metadata of the first column contains location, topic id, number of partitions and changed settings.
    """
    read_options = {name: value for name, value in request.items() if name != "topic"}
    options, schema = Options({**read_options, "subscribePattern": ".*"}), StructType()
    with options.source.open(peek=True) as reader:
        topic = reader.topics().get(request["topic"])
        config = None if topic is None else topic.config
    if topic is None or config is None:
        return schema
    metadata = {
        "location": options.source.location,
        "topic.id": str(topic.topic_id or ""),
        "partitions": str(len(topic.partitions)),
        "config": json.dumps(config.to_mapping(only_changed=True), default=str),
    }
    for name in check_names(options.columns or (*KAFKA, HEADERS)):
        schema.add(name, SPARK_TYPES[TYPES[canonical(name)]], nullable=True, metadata={_TOPIC: metadata})
        metadata = {}
    return schema


def _create(request: Mapping[str, str]) -> StructType:
    """Create a topic whose settings are the properties of a table. Return a schema without columns."""
    write_options = {name: value for name, value in request.items() if not name.startswith((_PROPERTY, _COLUMN))}
    for name, column_type in _strip_prefix(request, _COLUMN).items():
        if TYPES.get(name) != column_type:
            columns = ", ".join(f"{column} {TYPES[column]}" for column in (*KAFKA, HEADERS))
            raise ConfigError(f"a topic has no column {name} {column_type}: the columns of each topic are {columns}")
    config: dict[str, object] = {}
    partitions = "1"
    for name, value in _strip_prefix(request, _PROPERTY).items():
        if name == "partitions":
            partitions = value
        elif name not in _SPARK_PROPERTIES and not name.startswith("option."):
            config[name] = value
    from stratalog_spark.options.write_options import SinkOptions  # noqa: PLC0415 - imports the engine

    options = SinkOptions({**write_options, "partitions": partitions})
    assert options.topic is not None  # from the catalog
    assert options.partitions is not None  # as above
    with options.target.open() as writer:
        writer.create_topic(options.topic, options.partitions, config)
    return StructType()


def _strip_prefix(request: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {name[len(prefix) :]: value for name, value in request.items() if name.startswith(prefix)}


def _plan(request: Mapping[str, str]) -> StructType:
    """Return a schema with one column, whose metadata contains the description of a read, and its size in bytes."""
    schema = StructType.fromJson(json.loads(request["schema"]))
    read_options = {name: value for name, value in request.items() if name != "schema"}
    options = Options(merge_table_options(read_options, schema, streaming=False))
    with options.source.open(peek=True) as reader:
        ranges = list(resolve(options, reader))
        splits = plan_ranges(options, reader, ranges)
        pieces = unpruned_pieces = [piece for split in splits for piece in split.pieces]
        if options.pushed is not None or options.counts:
            unpruned_pieces = plan_segments(reader, ranges, options.isolation)
    plan = {
        "description": describe_read(options, schema.names, pieces, unpruned_pieces),
        "size_bytes": sum(split.size_bytes for split in splits),
    }
    return StructType().add("plan", LongType(), nullable=True, metadata={_PLAN: plan})


def describe_read(
    options: Options, columns: Sequence[str], planned_pieces: Sequence[Piece], unpruned_pieces: Sequence[Piece]
) -> str:
    """Return the text that Spark's ``explain`` shows for a read.

    ``planned_pieces`` are the pieces of segments in the plan: those that tasks read, and those that the manifest counts.
    ``unpruned_pieces`` are the pieces that tasks would read without a pushed predicate or count.
    """
    spans: dict[str, list[int]] = {}
    for piece in planned_pieces:
        span = spans.setdefault(str(piece.log), [piece.start, piece.end])
        span[:] = min(span[0], piece.start), max(span[1], piece.end)
    range_texts = [f"{name} [{start}, {end})" for name, (start, end) in list(spans.items())[:_MOST_RANGES]]
    if len(spans) > _MOST_RANGES:
        range_texts.append(f"and {len(spans) - _MOST_RANGES} more")
    scanned_pieces = [piece for piece in planned_pieces if piece.records is None]
    texts = [
        f"{options.topics.strategy} {options.topics.text} of {options.source.location}",
        f"columns {', '.join(columns)}",
        f"pushed {options.pushed}" if options.pushed else "",
        "count" if options.counts else "",
        f"ranges {', '.join(range_texts) or 'none'}",
        f"segments {_segments(scanned_pieces)} of {_segments(unpruned_pieces)}, bytes {_bytes(scanned_pieces)} of {_bytes(unpruned_pieces)}",
        f"segments counted in manifests {len(planned_pieces) - len(scanned_pieces)}"
        if len(scanned_pieces) < len(planned_pieces)
        else "",
        UNORDERED
        if options.pushed and options.pushed.has_late_bound and len(scanned_pieces) == len(unpruned_pieces)
        else "",
    ]
    return f"[{'; '.join(text for text in texts if text)}]"


def _segments(pieces: Iterable[Piece]) -> int:
    return len({(piece.log, piece.base_offset) for piece in pieces})


def _bytes(pieces: Iterable[Piece]) -> int:
    return sum(piece.span_bytes for piece in pieces)
