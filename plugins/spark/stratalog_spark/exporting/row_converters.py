"""Conversion of records to the rows of an export, and the settings for it, which the first plan stores."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import pyarrow as pa

from stratalog import Reader, TopicPartition
from stratalog.errors import ConfigError
from stratalog.reading import Scanned
from stratalog_spark.columns.scanned_rows import Rows
from stratalog_spark.parquet.values import SAMPLE_ROWS, AvroValues, JsonValues, json_fields

# the path contains the topic
_COLUMNS: Final = ("key", "value", "partition", "offset", "timestamp", "timestampType", "headers")


class RawRows:
    """Converter of scanned records to rows with the columns of Spark's Kafka source."""

    malformed = 0

    def __init__(self, names: Sequence[str]) -> None:
        self._rows = Rows(names)

    def __call__(self, scanned: Scanned) -> Any:
        """Return the rows as a ``pyarrow.RecordBatch``."""
        return self._rows.of(scanned)


class StructRows:
    """Converter of scanned records to rows with the value as a struct. Bad values are in the column ``malformed``."""

    def __init__(self, names: Sequence[str], values: JsonValues | AvroValues) -> None:
        self._rows, self._values, self.malformed = Rows(names), values, 0

    def __call__(self, scanned: Scanned) -> Any:
        """Return the rows as a ``pyarrow.RecordBatch``, and add the number of bad values to ``malformed``."""
        batch = self._rows.of(scanned)
        raw = batch.column("value")
        structs, bad = self._values.parse(raw)
        self.malformed += len(bad)
        wrong = pa.nulls(len(raw), pa.binary()) if not bad else self._only(raw, bad)
        at = batch.schema.get_field_index("value")
        return batch.set_column(at, "value", structs).append_column("malformed", wrong)

    def _only(self, raw: Any, rows: Sequence[int]) -> Any:
        places: list[int | None] = [None] * len(raw)
        for row in rows:
            places[row] = row
        return raw.take(pa.array(places, pa.int64()))


def value_style(
    reader: Reader,
    names: Sequence[TopicPartition],
    schema: str,
    fields: Any,
    avro_schemas: Mapping[int | None, object] | None,
) -> dict[str, object]:
    """Return the settings for parsing values, which the first plan stores. Raise ConfigError if they are wrong."""
    if schema == "json":
        found = fields if fields is not None else json_fields(list(_sample(reader, names)))
        return {"fields": base64.b64encode(found.serialize()).decode()}
    if schema == "avro":
        if not avro_schemas:
            raise ConfigError("schema=avro needs the writers' schemas")
        AvroValues(avro_schemas)
        return {"avro_schemas": [[number, written] for number, written in avro_schemas.items()]}
    return {}


def _sample(reader: Reader, names: Sequence[TopicPartition]) -> Iterator[bytes | None]:
    """Yield the first values of each partition, about 1,000 values in total."""
    for name in names:
        each = -(-SAMPLE_ROWS // len(names))
        yield from (record.value for record in islice(reader.log(*name).records(), each))


def row_converter(style: Mapping[str, Any]) -> RawRows | StructRows:
    """Return the converter for a style: ``schema``, ``layout``, and the settings of ``value_style``."""
    # the path contains the topic in layout hive
    names = _COLUMNS if style["layout"] == "hive" else ("topic", *_COLUMNS)
    if style["schema"] == "json":
        return StructRows(names, JsonValues(pa.ipc.read_schema(pa.py_buffer(base64.b64decode(style["fields"])))))
    if style["schema"] == "avro":
        return StructRows(names, AvroValues(dict(style["avro_schemas"])))
    return RawRows(names)
