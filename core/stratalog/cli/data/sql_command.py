"""``stratalog sql``: query topics with DuckDB."""

from __future__ import annotations

import csv
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import closing
from decimal import Decimal
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, Final

import click

from stratalog.cli.contents.avro import avro_text
from stratalog.cli.contents.values import Style, put_bytes
from stratalog.cli.options import LogPlace, json_option, view_options
from stratalog.cli.output import Output
from stratalog.cli.parameters import NamedPath
from stratalog.errors import ConfigError, PluginImportError, UnknownTopicError
from stratalog.model.arrow import ARROW_COLUMNS

_FORMATS: Final = {".csv": "csv, header", ".json": "json", ".jsonl": "json", ".parquet": "parquet"}
_SHOWN_ROWS: Final = 1000
_SAMPLE_RECORDS: Final = 1000
_RAW: Final = "records of "


@click.command()
@click.argument("query")
@view_options
@click.option(
    "--values", "values", metavar="TOPIC=json|TOPIC=FILE.avsc", multiple=True,
    help="Add a column for each field of the values of TOPIC. The values are JSON objects, or Avro records with the "
    "schema in FILE.",
)  # fmt: skip
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV with a header.")
@click.option(
    "--output", "-o", "file", type=NamedPath(dir_okay=False),
    help="Write the result to a file. The suffix .parquet, .csv, .json or .jsonl selects the format.",
)  # fmt: skip
@json_option
def sql(
    place: LogPlace,
    output: Output,
    query: str,
    values: tuple[str, ...],
    as_csv: bool,  # noqa: FBT001 - click passes options
    file: str | None,
) -> None:
    """Run the SQL query QUERY over the topics of a log directory or a tier.

    Each topic is a view with the columns partition, offset, timestamp, timestamp_type, key, value, headers and
    leader_epoch. Put "offset" and unusual names of topics in double quotes. DuckDB ignores case: topics whose names
    differ only in case have no view. Conditions on partition, "offset" and timestamp skip data that cannot match.

    Example: stratalog sql 'select key, count(*) from orders group by key' data
    """
    kind = _format_of(file)
    with place.reader() as reader, closing(_connect()) as connection:
        topics, datasets = reader.topics(), []
        counts = Counter(topic.lower() for topic in topics)
        if alike := [topic for topic in topics if counts[topic.lower()] > 1]:
            output.note(f"topics without a view, because DuckDB does not distinguish their names: {', '.join(alike)}")
        for topic in (name for name in topics if name not in alike):
            datasets.append(reader.topic(topic).dataset())
            connection.register(_RAW + topic, datasets[-1])
            connection.execute(f"create view {_name(topic)} as select * from {_name(_RAW + topic)}")  # noqa: S608 - quoted
        try:
            for option in values:
                _add_values(connection, option, topics)
            _print(connection, query, output, kind, file, as_csv=as_csv)
        except _duckdb().Error as error:
            for dataset in datasets:
                if dataset.error is not None:
                    raise dataset.error from error
            raise ConfigError(f"the query failed: {error}{_quoting_advice(query, topics, str(error))}") from error


def _quoting_advice(query: str, topics: Iterable[str], reason: str) -> str:
    """Return a line with the names that a failed query must have in double quotes; empty if there are none."""
    unquoted = re.sub(r"""(["']).*?\1""", " ", query, flags=re.DOTALL)
    names = [
        name
        for name in ("offset", *topics)
        if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", unquoted)
        and (not name.isidentifier() or f'at or near "{name}"' in reason)
    ]
    return f"\nput these names in double quotes: {', '.join(map(_name, names))}" if names else ""


def _print(connection: Any, query: str, output: Output, kind: str | None, file: str | None, *, as_csv: bool) -> None:
    relation = connection.sql(query)
    if relation is None:
        raise ConfigError("the query has no result: use a SELECT")
    if file is not None:
        relation.create_view("the result")
        connection.execute(f'copy "the result" to {_text(file)} (format {kind})')
        return
    result = relation.to_arrow_reader()
    names = result.schema.names
    rows = (row for batch in result for row in zip(*map(_cells, batch.columns), strict=True))
    if as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([_to_cell(value) for value in row] for row in rows)
    elif output.as_json:
        for row in rows:
            output.item(_item(zip(names, row, strict=True)))
    else:
        output.table("", names, [[_to_cell(value) for value in row] for row in islice(rows, _SHOWN_ROWS)])
        if next(rows, None) is not None:
            output.note(f"only the first {_SHOWN_ROWS:,} rows are shown: use --csv, --json or --output for all")


def _add_values(connection: Any, option: str, topics: Mapping[str, object]) -> None:
    """Replace the view of a topic by a view that also has a column for each field of the topic's values.

    The names and types of the fields come from a sample of the values. If no value of the sample is a JSON object, the
    view does not change.
    """
    topic, is_pair, kind = option.rpartition("=")
    if not is_pair:
        raise ConfigError(f"--values {option}: give TOPIC=json or TOPIC=FILE.avsc")
    if topic not in topics:
        raise UnknownTopicError(f"--values {option}: there is no topic {topic}")
    text = "decode(value)"
    if kind != "json":
        if not Path(kind).exists():
            raise ConfigError(f"--values {option}: there is no file {kind}: give TOPIC=json or TOPIC=FILE.avsc")
        connection.create_function(f"avro {topic}", avro_text(Path(kind), "sql"), ["BLOB"], "VARCHAR")
        text = f"{_name(f'avro {topic}')}(value)"
    parsed = f"try({text}::json)"
    sample = f"select {parsed} as j from {_name(_RAW + topic)} where value is not null limit {_SAMPLE_RECORDS}"  # noqa: S608 - quoted
    structures = connection.execute(f"select json_group_structure(j) from ({sample}) where json_type(j) = 'OBJECT'")  # noqa: S608 - quoted
    ((structure,),) = structures.fetchall()
    if structure is None or structure == "{}":
        return
    columns = [f"fields.{_name(field)} as {_name(_column_name(field))}" for field in json.loads(structure)]
    fields_expression = f"json_transform({parsed}, {_text(structure)}) as fields"
    selected_columns = ", ".join(["* exclude (fields)", *columns])
    connection.execute(
        f"create or replace view {_name(topic)} as select {selected_columns} "  # noqa: S608 - quoted
        f"from (select *, {fields_expression} from {_name(_RAW + topic)})"
    )


def _column_name(field: str) -> str:
    """Return the column name of a field: its name, with the prefix ``value_`` if the name is a column of records."""
    return f"value_{field}" if field.lower() in ARROW_COLUMNS else field


def _format_of(file: str | None) -> str | None:
    if file is None:
        return None
    kind = _FORMATS.get(Path(file).suffix.lower())
    if kind is None:
        raise ConfigError(f"--output {file}: the suffix must be one of {', '.join(_FORMATS)}")
    return kind


def _connect() -> Any:
    connection = _duckdb().connect()
    connection.execute("set timezone = 'UTC'")
    return connection


def _duckdb() -> Any:
    try:
        return import_module("duckdb")
    except ImportError as error:
        raise PluginImportError("duckdb is not installed", "sql", "stratalog[sql]") from error


def _name(identifier: str) -> str:
    escaped = identifier.replace('"', '""')
    return f'"{escaped}"'


def _text(literal: str) -> str:
    escaped = literal.replace("'", "''")
    return f"'{escaped}'"


def _cells(column: Any) -> list[Any]:
    """Return the cells of a column. Timestamps become text, because datetime has no years after 9999."""
    pa = import_module("pyarrow")
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.string())
    cells: list[Any] = column.to_pylist()
    if pa.types.is_decimal(column.type) and column.type.scale == 0:
        return [None if cell is None else int(cell) for cell in cells]
    return cells


def _to_cell(value: Any) -> Any:
    """Return a cell for a table or for CSV: bytes become text, and lists and objects become JSON."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return json.dumps(_to_json(value), default=str) if isinstance(value, dict | list) else value


def _item(cells: Any) -> dict[str, object]:
    item: dict[str, object] = {}
    for name, value in cells:
        if isinstance(value, bytes):
            put_bytes(item, name, value, Style.TEXT)
        else:
            item[name] = _to_json(value)
    return item


def _to_json(value: Any) -> Any:
    if isinstance(value, dict):
        return _item(value.items())
    if isinstance(value, list):
        return [_to_json(cell) for cell in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return float(value) if isinstance(value, Decimal) else value
