from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_runs import items_of
from stratalog import Record, open_engine, open_reader
from stratalog.cli.app import run


@pytest.fixture
def uri(tmp_path: Path, bucket: Path) -> str:
    with open_engine(tmp_path / "source", tier=bucket.as_uri()) as engine:
        engine.create_topic("t")
        for number in range(3):
            engine.log("t", 0).append([Record(value=b"%d" % number, timestamp_ms=1_700_000_000_000 + number * 1000)])
            engine.log("t", 0).roll()
        engine.offload()
    return bucket.as_uri()


def test_a_plan_is_reported_and_carried_out(tmp_path: Path, uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    where = str(tmp_path / "new")
    (plan,) = items_of(capsys, "restore", uri, where, "--to-offset", "t-0:2", "--as", "t=u", "--dry-run")
    assert (plan["restored_as"], plan["log_end"], plan["segments"], plan["copied"]) == ("u-0", 2, 2, 0)
    assert not (tmp_path / "new").exists()
    (report,) = items_of(capsys, "restore", uri, where, "--to-time", "2023-11-14T22:13:21Z")
    assert (report["restored_as"], report["log_end"], report["copied"]) == ("t-0", 1, 1)
    with open_reader(where) as reader:
        assert [record.value for record in reader.log("t", 0).records()] == [b"0"]


def test_the_directory_is_an_argument_or_an_option(
    tmp_path: Path, uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    where = str(tmp_path / "new")
    (report,) = items_of(capsys, "restore", uri, "--dir", where)
    assert report["log_end"] == 3
    assert run(["restore", uri, where, "--dir", "other"]) == 2
    assert f"writes to one log directory, and several are named: {where} other" in capsys.readouterr().err
    assert run(["restore", uri]) == 2
    assert "no log directory is named: give DIR" in capsys.readouterr().err


@pytest.mark.parametrize(
    "wrong",
    [["--to-offset", "t:2"], ["--to-offset", "t-0:x"], ["--to-time", "yesterday"], ["--as", "t"], ["--topic", "u"]],
)
def test_wrong_arguments_are_reported(
    tmp_path: Path, uri: str, capsys: pytest.CaptureFixture[str], wrong: list[str]
) -> None:
    assert run(["restore", uri, str(tmp_path / "new"), *wrong, "--json"]) == 2
    assert json.loads(capsys.readouterr().err)["message"]
    assert not (tmp_path / "new" / "t-0").exists()


def test_an_end_inside_a_batch_is_reported(tmp_path: Path, bucket: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a report, requested records would be missing without an error."""
    with open_engine(tmp_path / "source", tier=bucket.as_uri()) as engine:
        engine.create_topic("t")
        engine.log("t", 0).append([Record(value=b"%d" % number) for number in range(10)])
        engine.log("t", 0).roll()
        engine.offload()
    assert run(["restore", bucket.as_uri(), str(tmp_path / "new"), "--to-offset", "t-0:4"]) == 0
    assert "t-0 ends at 0, not at 4" in capsys.readouterr().err


def test_existing_records_are_replaced_on_request(tmp_path: Path, uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    where = str(tmp_path / "new")
    items_of(capsys, "restore", uri, where)
    assert run(["restore", uri, where, "--to-offset", "t-0:1"]) == 2
    assert "overwrite" in capsys.readouterr().err
    (report,) = items_of(capsys, "restore", uri, where, "--to-offset", "t-0:1", "--overwrite", "t")
    assert report["log_end"] == 1


def test_a_transaction_without_an_end_is_reported(
    tmp_path: Path, bucket: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_engine(tmp_path / "source", tier=bucket.as_uri()) as engine:
        engine.create_topic("t")
        with engine.producer(transactional_id="x") as producer:
            producer.begin_transaction()
            producer.send("t", value=b"v")
            producer.commit_transaction()
        engine.log("t", 0).roll()
        engine.offload()
    assert run(["restore", bucket.as_uri(), str(tmp_path / "new"), "--to-offset", "t-0:1"]) == 0
    assert "t-0 ends with 1 open transactions" in capsys.readouterr().err
