from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from command_runs import printed_items
from stratalog import Record, open_engine
from stratalog.cli.app import run


@pytest.fixture
def uri(tmp_path: Path, bucket: Path) -> str:
    """Return the URI of a tier with three versions. Segments 0 and 1 are in the tier, 1 and 2 on local disk."""
    with open_engine(tmp_path / "data", tier=bucket.as_uri()) as engine:
        engine.create_topic("t", config={"local.retention.bytes": 1, "retention.bytes": -1})
        log = engine.log("t", 0)
        for number in range(2):
            log.append([Record(value=b"%d" % number)])
            log.roll()
            engine.offload()
        log.maintenance.evict(1)
        log.append([Record(value=b"2")])
        log.roll()
    return bucket.as_uri()


def differences(capsys: pytest.CaptureFixture[str], code: int, *arguments: str) -> list[tuple[object, object]]:
    assert run(["tier", "diff", *arguments, "--json"]) == code
    rows = printed_items(capsys)
    return [(row["side"], row["base_offset"]) for row in rows]


def test_a_directory_and_its_tier(tmp_path: Path, uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    where = ("--dir", str(tmp_path / "data"))
    assert differences(capsys, 1, uri, "t", "0", *where) == [("right", 0), ("left", 2), ("left", 3)]
    assert ("both", 1) in differences(capsys, 1, uri, "t", "0", *where, "--all")


def test_two_versions_of_a_tier_are_compared(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert differences(capsys, 1, uri, "t", "0", "--from", "2") == [("right", 1)]
    assert differences(capsys, 0, uri, "t", "0", "--from", "3") == []
    assert differences(capsys, 0, uri, "t", "0", "--from", "2", "--to", "2", "--all") == [("both", 0)]


def test_the_newest_topic_or_that_of_the_directory_is_compared_if_a_topic_was_created_again(
    tmp_path: Path, uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    with open_engine(tmp_path / "data", tier=uri) as engine:
        engine.delete_topic("t")
        engine.create_topic("t", config={"segment.bytes": 1_000_000})
        engine.log("t", 0).append([Record(value=b"new")])
        engine.log("t", 0).roll()
        engine.offload()
    assert differences(capsys, 1, uri, "t", "0", "--from", "1") == [("right", 0)]
    assert ("both", 0) in differences(capsys, 1, uri, "t", "0", "--dir", str(tmp_path / "data"), "--all")
    copy_differences = differences(capsys, 1, uri, "t", "0", "--dir", str(tmp_path / "copy"))
    assert copy_differences == [("left", 1), ("left", 2), ("left", 3)], "the tier has no segment of the deleted topic"


@pytest.mark.parametrize("wrong", [[], ["--from", "1", "--dir", "."], ["--from", "9"]])
def test_wrong_arguments_are_reported(uri: str, capsys: pytest.CaptureFixture[str], wrong: list[str]) -> None:
    assert run(["tier", "diff", uri, "t", "0", *wrong, "--json"]) == 2
    assert json.loads(capsys.readouterr().err)["message"]
