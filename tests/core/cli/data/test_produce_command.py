"""``stratalog produce``: lines, JSON objects and files as records."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest

from stratalog import Record, open_engine, open_reader
from stratalog.cli.app import run

Produced = Callable[..., list[Record]]


@pytest.fixture
def produced(tmp_path: Path) -> Produced:
    """Return a function that runs ``stratalog produce`` for a topic of three partitions, and returns its records."""
    folder = tmp_path / "data"
    with open_engine(folder) as engine:
        engine.create_topic("t", partitions=3)

    def call(*options: object) -> list[Record]:
        assert run(["produce", "t", *map(str, options), "--dir", str(folder)]) == 0
        with open_reader(folder) as reader:
            return [record for number in range(3) for record in reader.log("t", number).records()]

    return call


def test_keys_headers_and_null(produced: Produced, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"a\t1\nb\t-\n-\t-\n-\n")
    records = produced(tmp_path / "lines", "-K", r"\t", "-H", "h=x=1", "-H", "i=", "--null", "-", "-p", 2)
    assert [(record.key, record.value, record.partition) for record in records] == [
        (b"a", b"1", 2),
        (b"b", None, 2),
        (None, None, 2),
        (None, None, 2),
    ]
    assert {record.headers for record in records} == {(("h", b"x=1"), ("i", b""))}


def test_one_key_for_all_lines(produced: Produced, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"1\n2\n")
    assert [(record.key, record.value) for record in produced(tmp_path / "lines", "-k", "key")] == [
        (b"key", b"1"),
        (b"key", b"2"),
    ]


def test_whole_files_are_records(produced: Produced, tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("one", "two")]
    for number, file in enumerate(files):
        file.write_bytes(b"\0line\n" * number)
    assert [record.value for record in produced("--input", "files", *files)] == [b"", b"\0line\n"]


def test_standard_input_is_read_without_a_file(produced: Produced, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"typed\n")))
    assert [record.value for record in produced()] == [b"typed"]


@pytest.mark.parametrize("decoder", ["text", "hex", "base64"])
def test_json_objects_of_consume_give_the_same_records(
    produced: Produced, tmp_path: Path, capsys: pytest.CaptureFixture[str], decoder: str
) -> None:
    records = [
        Record(timestamp_ms=1_700_000_000_000, key=b"\xff", value=b"null", headers=(("h", b"\0"), ("i", None))),
        Record(timestamp_ms=5, key=None, value=None),
        Record(timestamp_ms=6, key=b"", value="é\u2028\n".encode()),
    ]
    with open_engine(tmp_path / "from") as engine:
        engine.create_topic("t", partitions=3)
        engine.log("t", 1).append(records)
    assert run(["consume", "t", "--json", "--decoder", decoder, "--dir", str(tmp_path / "from")]) == 0
    (tmp_path / "records").write_text(capsys.readouterr().out, encoding="utf-8")
    with open_reader(tmp_path / "from") as reader:
        assert produced("--input", "json", tmp_path / "records") == list(reader.log("t", 1).records())


def test_json_values_are_written_as_json(produced: Produced, tmp_path: Path) -> None:
    (tmp_path / "records").write_text('{"key": 7, "value": {"a": [1, "é"]}}\n\n{"value": "text"}\n', encoding="utf-8")
    values = {record.key: record.value for record in produced("--input", "json", tmp_path / "records")}
    assert values == {b"7": '{"a":[1,"é"]}'.encode(), None: b"text"}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("no json", "no JSON at column 1: Expecting value"),
        ("[1]", "a record must be a JSON object"),
        ('{"text": "x"}', "unknown field 'text': use key, value, headers, partition and timestamp_ms"),
        ('{"headers": {"name": "x"}}', "headers must be a list of objects"),
        ('{"headers": [{"value": "x"}]}', "a header has no name"),
        ('{"headers": [{"key": null, "value": "x"}]}', "a header has no name"),
        ('{"headers": [{"key": "name", "text": "x"}]}', "unknown field 'text': use key and value"),
        ('{"value_hex": "zz"}', "value_hex is not hex"),
        ('{"timestamp_ms": "now"}', "timestamp_ms is an int, not str"),
        ('{"partition": "0"}', "partition must be an int, not str"),
    ],
)
def test_a_line_that_is_no_record_is_named_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, reason: str
) -> None:
    file, folder = tmp_path / "records", tmp_path / "data"
    file.write_text('{"value": "good"}\n' + line + "\n", encoding="utf-8")
    with open_engine(folder) as engine:
        engine.create_topic("t")
    assert run(["produce", "t", str(file), "--input", "json", "--dir", str(folder)]) == 2
    assert f"line 2 of {file} is not a record: {reason}" in capsys.readouterr().err


def test_a_separator_is_for_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["produce", "t", "-K", ":", "--input", "json", "--dir", str(tmp_path)]) == 2
    assert "--key-separator splits lines" in capsys.readouterr().err
