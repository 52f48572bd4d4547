"""``stratalog sql``: views of topics, results in several forms, and errors that name the cause."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from stratalog import Record, open_engine
from stratalog.cli.app import app
from stratalog.errors import ConfigError, CorruptBatchError, UnknownTopicError

duckdb = pytest.importorskip("duckdb", reason="the extra sql is not installed")
pa = pytest.importorskip("pyarrow", reason="the extra arrow is not installed")

START_MS = 1_700_000_000_000
VALUES = [b'{"id": 1, "key": "a", "tags": [1]}', b'{"id": 2}', b"\xff\x00", b"[3]", None, b"text"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with open_engine(tmp_path / "data") as engine:
        engine.create_topic("orders", partitions=2)
        engine.create_topic("odd-name")
        for partition in range(2):
            records = [Record(timestamp_ms=START_MS + n, key=b"%d" % n, value=value) for n, value in enumerate(VALUES)]
            engine.log("orders", partition).append(records)
        engine.log("odd-name", 0).append([Record(value=b"x", headers=(("h", b"\xfe"),))])
    return tmp_path / "data"


def run(query: str, *arguments: object) -> Result:
    return CliRunner().invoke(app, ["sql", query, *map(str, arguments)])


def printed(query: str, *arguments: object) -> str:
    result = run(query, *arguments)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def items(query: str, *arguments: object) -> list[dict[str, object]]:
    return [json.loads(line) for line in printed(query, *arguments, "--json").splitlines()]


def test_each_topic_is_a_view(folder: Path) -> None:
    assert items("select count(*) as n, sum(partition) as p from orders", folder) == [{"n": 12, "p": 6}]
    assert items('select value, headers from "odd-name"', folder) == [
        {"value": "x", "headers": [{"key": "h", "value_base64": "/g=="}]}
    ]
    assert "12" in printed("select count(*) from orders", folder)


def test_topics_whose_names_differ_only_in_case_have_no_view(folder: Path) -> None:
    with open_engine(folder) as engine:
        engine.create_topic("Orders")
    result = run('select count(*) as n from "odd-name"', folder)
    assert (result.exit_code, "1" in result.stdout) == (0, True)
    assert "Orders, orders" in result.stderr
    assert isinstance(run("select count(*) from orders", folder).exception, ConfigError)


def test_a_tier_is_queried_without_a_directory(tmp_path: Path, bucket: Path) -> None:
    uri = bucket.as_uri()
    with open_engine(tmp_path / "data", tier=uri) as engine:
        engine.create_topic("t")
        engine.log("t", 0).append([Record(value=b"v")])
        engine.log("t", 0).roll()
        engine.offload()
    assert items('select "offset", value from t', uri) == [{"offset": 0, "value": "v"}]


def test_cells_of_all_types_are_printed(folder: Path) -> None:
    query = """select value, timestamp, 1.5 as f, 2.25::decimal(5, 2) as d, null as n, true as b
               from orders where partition = 1 and "offset" in (2, 4) order by "offset" """
    assert items(query, folder) == [
        {"value_base64": "/wA=", "timestamp": "2023-11-14 22:13:20.002000Z", "f": 1.5, "d": 2.25, "n": None, "b": True},
        {"value": None, "timestamp": "2023-11-14 22:13:20.004000Z", "f": 1.5, "d": 2.25, "n": None, "b": True},
    ]
    rows = list(csv.reader(io.StringIO(printed(query, folder, "--csv"))))
    assert rows == [
        ["value", "timestamp", "f", "d", "n", "b"],
        ["\\xff\x00", "2023-11-14 22:13:20.002000Z", "1.5", "2.25", "", "True"],
        ["", "2023-11-14 22:13:20.004000Z", "1.5", "2.25", "", "True"],
    ]


@pytest.mark.parametrize("suffix", ["parquet", "csv", "json", "jsonl"])
def test_a_result_is_written_to_a_file(folder: Path, tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"it's.{suffix}"
    assert printed('select key, "offset" from orders where partition = 0 order by 2', folder, "-o", file) == ""
    (count,) = duckdb.sql(
        f"select count(*), max(\"offset\") from '{str(file).replace(chr(39), chr(39) * 2)}'"  # noqa: S608 - a path of the test
    ).fetchall()
    assert count == (6, 5)


def test_fields_of_json_values_are_columns(folder: Path) -> None:
    """Values that are not JSON objects have null columns. A field with a column's name gets the prefix ``value_``."""
    query = 'select "offset", key, id, value_key, tags from orders where partition = 0 order by 1'
    rows = items(query, folder, "--values", "orders=json")
    assert rows[:3] == [
        {"offset": 0, "key": "0", "id": 1, "value_key": "a", "tags": [1]},
        {"offset": 1, "key": "1", "id": 2, "value_key": None, "tags": None},
        {"offset": 2, "key": "2", "id": None, "value_key": None, "tags": None},
    ]
    assert [item["id"] for item in rows[3:]] == [None] * 3
    assert items('select * from "odd-name"', folder, "--values", "odd-name=json")[0]["value"] == "x"


def test_fields_of_avro_values_are_columns(tmp_path: Path) -> None:
    fastavro = pytest.importorskip("fastavro", reason="the extra avro is not installed")
    schema = {
        "type": "record",
        "name": "r",
        "fields": [{"name": "id", "type": "long"}, {"name": "who", "type": "string"}],
    }
    (tmp_path / "r.avsc").write_text(json.dumps(schema))
    encoded = io.BytesIO()
    fastavro.schemaless_writer(encoded, schema, {"id": 7, "who": "me"})
    with open_engine(tmp_path / "data") as engine:
        engine.create_topic("t")
        engine.log("t", 0).append([Record(value=encoded.getvalue()), Record(value=b""), Record()])
    query = 'select id, who from t order by "offset"'
    rows = items(query, tmp_path / "data", "--values", f"t={tmp_path / 'r.avsc'}")
    assert rows == [{"id": 7, "who": "me"}, {"id": None, "who": None}, {"id": None, "who": None}]


def test_a_long_result_is_cut_in_a_table_alone(folder: Path) -> None:
    result = run("select a.key from orders a, orders b, orders c", folder)
    assert "only the first 1,000 rows" in result.stderr
    assert len(printed("select a.key from orders a, orders b, orders c", folder, "--csv").splitlines()) == 12**3 + 1


@pytest.mark.parametrize(
    ("query", "arguments", "error", "text"),
    [
        ("choose 1", (), ConfigError, "syntax error"),
        ("select * from nothing", (), ConfigError, "nothing"),
        ("", (), ConfigError, "use a SELECT"),
        ("select 1 from odd-name", (), ConfigError, 'put these names in double quotes: "odd-name"'),
        ("select 1 from orders where offset > 3", (), ConfigError, 'put these names in double quotes: "offset"'),
        ("select 1", ("-o", "x.txt"), ConfigError, r"\.parquet"),
        ("select 1", ("--values", "json"), ConfigError, "TOPIC=json"),
        ("select 1", ("--values", "nothing=json"), UnknownTopicError, "no topic nothing"),
        ("select 1", ("--values", "orders=missing.avsc"), ConfigError, "there is no file missing.avsc"),
        (
            "select 1",
            ("--values", "orders=jsn"),
            ConfigError,
            "there is no file jsn: give TOPIC=json or TOPIC=FILE.avsc",
        ),
    ],
)
def test_mistakes_are_named(
    folder: Path, query: str, arguments: tuple[str, ...], error: type[Exception], text: str
) -> None:
    if "missing.avsc" in text:
        pytest.importorskip("fastavro", reason="the extra avro is not installed")
    result = run(query, folder, *arguments)
    assert isinstance(result.exception, error)
    assert text.replace("\\", "") in str(result.exception)


def test_quotes_are_not_advised_for_other_mistakes(folder: Path) -> None:
    result = run("""select nothing, "offset", 'an odd-name' from "odd-name", "an odd-name", orders""", folder)
    assert isinstance(result.exception, ConfigError)
    assert "double quotes" not in str(result.exception)


def test_damage_is_reported_as_by_other_commands(folder: Path) -> None:
    (file,) = (folder / "orders-1").glob("*.log")
    data = bytearray(file.read_bytes())
    data[-1] ^= 0xFF
    file.write_bytes(data)
    for query in ("select count(key) from orders", 'select * from orders where "offset" > 0 and partition = 1'):
        assert isinstance(run(query, folder).exception, CorruptBatchError)
    assert items('select count(*) as n from orders where partition = 0 or "offset" < 0', folder) == [{"n": 6}]


@pytest.mark.parametrize(
    ("query", "is_cut"), [("select * from range(1000)", False), ("select * from range(1001)", True)]
)
def test_a_table_of_more_than_1000_rows_is_cut_with_a_note(folder: Path, query: str, is_cut: bool) -> None:  # noqa: FBT001 - a parameter of the test
    assert ("only the first 1,000 rows" in run(query, folder).stderr) == is_cut
