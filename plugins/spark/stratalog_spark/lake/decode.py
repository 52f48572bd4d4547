"""Conversion of records to rows of a table. Records that cannot be parsed are returned separately, with the error."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from stratalog_spark.lake.columns import PREFIX, quarantine_columns, record_columns, value_columns
from stratalog_spark.lake.schemas import PREFIX_BYTES, Parser, parser_of

NO_PREFIX: Final = "the value does not begin with a zero byte and the id of a schema"
_NO_VALUE: Final = -1
_NO_ID: Final = -2


@dataclass(frozen=True)
class Decoded:
    """Decoded records of one Arrow batch.

    Attributes:
        rows: the parsed records, as a ``pyarrow.Table`` with all columns of the lake's table except ``kafka_bucket``.
        bad: records that cannot be parsed, as a ``pyarrow.Table`` with the columns of the quarantine.
        unknown: ids of schemas that the decoder does not have. Records of these schemas are neither in ``rows`` nor in
            ``bad``.
    """

    rows: Any
    bad: Any
    unknown: frozenset[int] = field(default_factory=frozenset)


class Decoder:
    """Decoder of records of one topic.

    Args:
        kind: ``raw``, ``json``, ``avro`` or ``protobuf``.
        schemas: schemas by id; the key None is for values without the prefix of a schema registry.
        missing: ids for which no schema exists. Records with these ids are bad.
        columns: ``pyarrow.Schema`` of the value's columns in the table.
    """

    def __init__(
        self, topic: str, kind: str, schemas: Mapping[int | None, object], missing: frozenset[int], columns: Any
    ) -> None:
        self._topic, self._kind, self._missing, self._columns = topic, kind, missing, columns
        self._parsers: dict[int | None, Parser] = {}
        self._schemas = schemas

    def decode(self, batch: Any) -> Decoded:
        """Decode the records of one Arrow batch.

        Args:
            batch: a ``pyarrow.RecordBatch`` of a read, with the columns ``key``, ``value``, ``partition``, ``offset``,
                ``timestamp`` and ``headers``.
        """
        if self._kind == "raw":
            return Decoded(self._rows(batch, [batch.column("value")]), quarantine_columns().empty_table())
        row_tables, bad_tables, unknown = list[Any](), list[Any](), set[int]()
        for schema_id, error, part in self._split_by_schema(batch):
            if error:
                bad_tables.append(self.quarantine_rows(part, [error] * part.num_rows))
            elif schema_id is not None and schema_id not in self._schemas:
                unknown.add(schema_id)
            else:
                rows, bad_rows = self._parse(part, schema_id)
                row_tables.append(rows)
                if bad_rows.num_rows:
                    bad_tables.append(bad_rows)
        rows = pa.concat_tables(row_tables) if row_tables else self._rows(batch.slice(0, 0), None)
        bad_rows = pa.concat_tables(bad_tables) if bad_tables else quarantine_columns().empty_table()
        return Decoded(rows, bad_rows, frozenset(unknown))

    def quarantine_rows(self, batch: Any, errors: list[str]) -> Any:
        """Return the records of a batch as a ``pyarrow.Table`` for the quarantine, with one error for each record."""
        schema = quarantine_columns()
        arrays = [pa.repeat(pa.scalar(self._topic, pa.string()), batch.num_rows)]
        arrays += [batch.column(name).cast(schema.field(name).type) for name in schema.names[1:-1]]
        return pa.Table.from_arrays([*arrays, pa.array(errors, pa.string())], schema=schema)

    def _split_by_schema(self, batch: Any) -> Iterator[tuple[int | None, str, Any]]:
        """Yield the records in groups by schema: id of the schema, error, and records.

        The id is None for null, and for values without the prefix of a schema registry. The error is empty if the
        records have a schema.
        """
        if None in self._schemas:
            yield None, "", batch
            return
        numbers = [_schema_id(value) for value in batch.column("value").to_pylist()]
        ids = pa.array(numbers, pa.int64())
        for number in dict.fromkeys(numbers):
            part = batch if len(set(numbers)) == 1 else batch.filter(pc.equal(ids, pa.scalar(number)))
            if number == _NO_VALUE:
                yield None, "", part
            elif number == _NO_ID:
                yield None, NO_PREFIX, part
            else:
                yield number, f"there is no schema with the id {number}" if number in self._missing else "", part

    def _parse(self, batch: Any, schema_id: int | None) -> tuple[Any, Any]:
        """Parse records of one schema. Return their rows, and the records that cannot be parsed."""
        values = batch.column("value")
        if values.null_count == len(values):
            return self._rows(batch, None), quarantine_columns().empty_table()
        if schema_id not in self._parsers:
            self._parsers[schema_id] = parser_of(self._kind, self._schemas[schema_id], prefixed=schema_id is not None)
        parser = self._parsers[schema_id]
        if schema_id is not None:
            values = pa.array([value[PREFIX_BYTES:] for value in values.to_pylist()], pa.binary())
        structs, bad_rows = parser.parse(values)
        if not bad_rows:
            return self._rows(batch, self._fit_columns(structs)), quarantine_columns().empty_table()
        mask = [True] * len(values)
        for row in bad_rows:
            mask[row] = False
        is_parsed = pa.array(mask)
        texts = [self._reason(values[row].as_py(), schema_id) for row in bad_rows]
        quarantined = self.quarantine_rows(batch.take(pa.array(bad_rows, pa.int64())), texts)
        return self._rows(batch.filter(is_parsed), self._fit_columns(structs.filter(is_parsed))), quarantined

    def _reason(self, value: bytes, schema_id: int | None) -> str:
        if self._kind == "json":
            try:
                json.loads(value)
            except (ValueError, RecursionError) as error:
                return f"the value is not JSON: {error}"
        return "the value does not fit the schema" + ("" if schema_id is None else f" with the id {schema_id}")

    def _fit_columns(self, structs: Any) -> list[Any]:
        """Return the fields of parsed values as columns of the table."""
        value_names = set(value_columns(structs.type).names)
        flat = dict(zip([field.name for field in structs.type], structs.flatten(), strict=True))
        return [
            flat[column.name].cast(column.type) if column.name in value_names else pa.nulls(len(structs), column.type)
            for column in self._columns
        ]

    def _rows(self, batch: Any, columns: list[Any] | None) -> Any:
        """Return rows of the table. ``columns`` contains the value's columns; None if all values are null."""
        records = record_columns(bucketed=False)
        if columns is None:
            columns = [pa.nulls(batch.num_rows, column.type) for column in self._columns]
        arrays = [batch.column(column.name.removeprefix(PREFIX)).cast(column.type) for column in records]
        return pa.Table.from_arrays([*arrays, *columns], schema=pa.schema([*records, *self._columns]))


def _schema_id(value: bytes | None) -> int:
    if value is None:
        return _NO_VALUE
    if len(value) < PREFIX_BYTES or value[0]:
        return _NO_ID
    return int.from_bytes(value[1:PREFIX_BYTES], "big")
