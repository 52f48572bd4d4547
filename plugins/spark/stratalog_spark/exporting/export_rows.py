"""Conversion of records to the rows of an export, and the settings for it, which the first plan stores."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stratalog import Reader, TopicPartition
from stratalog.errors import ConfigError
from stratalog.reading import Scanned
from stratalog_spark.columns.scanned_rows import Rows
from stratalog_spark.parquet.values import SAMPLE_ROWS, AvroValues, JsonValues, json_fields

_COLUMNS: Final = ("key", "value", "partition", "offset", "timestamp", "timestampType", "headers")


class ExportRows:
    """Converter of scanned records to rows with the columns of Spark's Kafka source.

    For JSON and Avro, the value is a struct. If a value cannot be parsed, the column ``malformed`` contains it.

    Args:
        style: ``schema``, ``layout``, and the settings of ``value_style``.

    Attributes:
        malformed: number of values that could not be parsed.
    """

    def __init__(self, style: Mapping[str, Any]) -> None:
        # in layout hive, the path of the file contains the topic
        self._rows = Rows(_COLUMNS if style["layout"] == "hive" else ("topic", *_COLUMNS))
        self._values: JsonValues | AvroValues | None = None
        if style["schema"] == "json":
            self._values = JsonValues(pa.ipc.read_schema(pa.py_buffer(base64.b64decode(style["fields"]))))
        elif style["schema"] == "avro":
            self._values = AvroValues(dict(style["avro_schemas"]))
        self.malformed = 0

    def convert(self, scanned: Scanned) -> pa.RecordBatch:
        """Return the rows of a scanned batch, and add the number of bad values to ``malformed``."""
        batch = self._rows.convert(scanned)
        if self._values is None:
            return batch
        raw: Any = batch.column("value")
        structs, bad_rows = self._values.parse(raw)
        self.malformed += len(bad_rows)
        is_bad: Any = np.zeros(len(raw), bool)
        is_bad[bad_rows] = True
        malformed: Any = pc.if_else(pa.array(is_bad), raw, pa.scalar(None, raw.type))
        value_index = batch.schema.get_field_index("value")
        return batch.set_column(value_index, "value", structs).append_column("malformed", malformed)


def value_style(
    reader: Reader,
    partitions: Sequence[TopicPartition],
    schema: str,
    fields: Any,
    avro_schemas: Mapping[int | None, object] | None,
) -> dict[str, object]:
    """Return the settings for parsing values. The first plan stores them. Raise ConfigError if they are wrong."""
    if schema == "json":
        value_fields = fields if fields is not None else json_fields(list(_sample(reader, partitions)))
        return {"fields": base64.b64encode(value_fields.serialize()).decode()}
    if schema == "avro":
        if not avro_schemas:
            raise ConfigError("schema=avro needs the writers' schemas")
        AvroValues(avro_schemas)
        return {"avro_schemas": [[number, avro_schema] for number, avro_schema in avro_schemas.items()]}
    return {}


def _sample(reader: Reader, partitions: Sequence[TopicPartition]) -> Iterator[bytes | None]:
    """Yield the first values of each partition, about 1,000 values in total."""
    for partition in partitions:
        limit = -(-SAMPLE_ROWS // len(partitions))
        yield from (record.value for record in islice(reader.log(*partition).records(), limit))
