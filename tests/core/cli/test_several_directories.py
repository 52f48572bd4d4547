"""Commands that read, with settings that list several log directories, as docs/operating.md advises."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from command_runs import items_of, printed_items
from stratalog import Record, open_engine
from stratalog.cli.app import run

TOPIC = "orders"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Return the settings file of an engine with a topic that has one partition on each of two disks."""
    disks = [str(tmp_path / name) for name in ("one", "two")]
    with open_engine(disks) as engine:
        engine.create_topic(TOPIC, partitions=2, config={"retention.ms": 86_400_000})
        for partition in range(2):
            engine.log(TOPIC, partition).append([Record(value=b"of %d" % partition)])
    assert {path.parent.name for path in tmp_path.glob("*/orders-*")} == {"one", "two"}
    settings = tmp_path / "stratalog.toml"
    settings.write_text(f"log.dirs = {json.dumps(disks)}\n", encoding="utf-8")
    return settings


def test_topics_are_those_of_all(capsys: pytest.CaptureFixture[str], config: Path) -> None:
    (topic,) = items_of(capsys, "topics", "list", "--config", config)
    assert (topic["topic"], topic["partitions"], topic["offsets"]) == (TOPIC, 2, 2)
    described = items_of(capsys, "topics", "describe", TOPIC, "--config", config)
    assert [row["log_end"] for row in described if "log_end" in row] == [1, 1]


def test_settings_are_found_whichever_disk_holds_the_partition(
    capsys: pytest.CaptureFixture[str], config: Path
) -> None:
    assert run(["topics", "describe", TOPIC, "--config", str(config)]) == 0
    assert "86400000" in capsys.readouterr().out.replace(",", "").replace("_", "")


def test_records_of_all_are_consumed_and_found(capsys: pytest.CaptureFixture[str], config: Path) -> None:
    records = items_of(capsys, "consume", TOPIC, "--config", config)
    assert [record["value"] for record in records] == ["of 0", "of 1"]
    for partition in range(2):
        assert items_of(capsys, "explain", TOPIC, partition, 0, "--config", config)[-1]["found"]


def test_directories_may_be_named_one_by_one(capsys: pytest.CaptureFixture[str], config: Path) -> None:
    one, two = config.parent / "one", config.parent / "two"
    assert len(items_of(capsys, "consume", TOPIC, "--dir", one, "--dir", two)) == 2


def test_a_log_in_two_directories_is_reported_and_hides_no_other_log(
    capsys: pytest.CaptureFixture[str], config: Path
) -> None:
    (second,) = (config.parent / "two").glob("orders-*")
    shutil.copytree(second, config.parent / "one" / second.name)
    partition = second.name.rpartition("-")[2]
    assert run(["topics", "describe", TOPIC, "--config", str(config), "--json"]) == 1
    rows = printed_items(capsys)
    errors = {row["partition"]: row["error"] for row in rows if "log_end" in row}
    assert errors.pop(int(partition)).startswith(f"{second.name} is in several log directories")
    assert list(errors.values()) == [""]


def test_a_directory_that_is_missing_is_named(capsys: pytest.CaptureFixture[str], config: Path) -> None:
    shutil.rmtree(config.parent / "two")
    assert run(["topics", "list", "--config", str(config)]) == 2
    assert str(config.parent / "two") in capsys.readouterr().err
