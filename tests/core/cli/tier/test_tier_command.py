from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from command_runs import items_of, printed_items
from stratalog import Record, open_engine, open_reader
from stratalog.cli.app import run
from stratalog.env import Env
from stratalog.env.clock import ManualClock
from stratalog.errors import ConfigError
from stratalog.tier.manifest import entry_tree
from stratalog.tier.upkeep.collect import GRACE_MS


@pytest.fixture
def uri(tmp_path: Path, bucket: Path) -> str:
    """Return the URI of a tier with two partitions. Retention has deleted one of the three segments of the first."""
    with open_engine(tmp_path / "data", tier=bucket.as_uri()) as engine:
        engine.create_topic("t", partitions=2, config={"retention.bytes": -1})
        for partition, segments in ((0, 3), (1, 1)):
            for number in range(segments):
                engine.log("t", partition).append([Record(value=b"%d" % number)])
                engine.log("t", partition).roll()
        engine.offload()
        engine.log("t", 0).delete_records(1)
        engine.apply_retention()
    return bucket.as_uri()


def test_the_logs_of_a_tier_are_listed(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = items_of(capsys, "tier", "ls", uri)
    assert [(row["topic"], row["partition"], row["segments"], row["log_start"], row["end_offset"]) for row in rows] == [
        ("t", 0, 2, 1, 3),
        ("t", 1, 1, 0, 1),
    ]
    assert items_of(capsys, "tier", "ls", uri, "t") == rows


def test_the_segments_of_a_partition_are_listed_now_and_as_they_were(
    uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [row["base_offset"] for row in items_of(capsys, "tier", "ls", uri, "t", "0")] == [1, 2]
    assert [row["base_offset"] for row in items_of(capsys, "tier", "ls", uri, "t", "0", "--version", "3")] == [0, 1]


def test_the_history_of_a_partition_is_listed_newest_first(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = items_of(capsys, "tier", "log", uri, "t", "0")
    assert [(row["version"], row["change"]) for row in rows] == [
        (5, "expire"), (4, "offload"), (3, "offload"), (2, "offload"), (1, "create")
    ]  # fmt: skip
    assert "log start" in str(rows[0]["reason"])
    assert [row["version"] for row in items_of(capsys, "tier", "log", uri, "t", "0", "--limit", "2")] == [5, 4]


def test_people_get_a_table(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["ls", uri], ["ls", uri, "t", "1"], ["log", uri, "t", "1"]):
        assert run(["tier", *arguments]) == 0
    assert "segment [0, 1)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["ls", "{uri}", "nobody"], 2, "there is no topic nobody"),
        (["log", "{uri}", "t", "7"], 2, "there is no t-7"),
        (["ls", "{uri}", "--version", "1"], 2, "--version needs TOPIC and PARTITION"),
        (["ls", "{uri}", "t", "0", "--version", "9"], 2, "its history has version 1"),
        (["ls", "/no/uri"], 2, "is not a URI"),
    ],
)
def test_wrong_arguments_are_explained(
    uri: str, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, message: str
) -> None:
    assert run(["tier", *(argument.format(uri=uri) for argument in arguments)]) == code
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_tier_without_logs_is_listed_with_advice(bucket: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tier", "ls", bucket.as_uri()]) == 0
    assert f"there are no logs in {bucket.as_uri()}: correct the URI" in capsys.readouterr().err


def test_a_damaged_root_is_named_and_the_others_are_listed(
    uri: str, bucket: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    newest = max(bucket.glob("t-*/1/manifest/*"))
    newest.chmod(0o600)
    newest.write_bytes(b"{}")
    assert run(["tier", "ls", uri, "--json"]) == 1
    rows = printed_items(capsys)
    assert [bool(row["error"]) for row in rows] == [False, True]


def test_pages_of_a_manifest_can_be_shown(
    tmp_path: Path, bucket: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry_tree, "PAGE_ITEMS", 2)
    monkeypatch.setattr(entry_tree, "INLINE_PAGES", 2)
    with open_engine(tmp_path / "data", tier=bucket.as_uri()) as engine:
        engine.create_topic("t")
        for _ in range(9):
            engine.log("t", 0).append([Record(value=b"v")])
            engine.log("t", 0).roll()
        engine.offload()
    pages = [str(path) for path in sorted(bucket.rglob("*.page"))]
    levels = list[object]()
    for page in pages:
        assert run(["dump", page, "--json"]) == 0
        items = printed_items(capsys)
        levels += [item["level"] for item in items if item["kind"] == "manifest_page"]
    assert set(levels) == {0, 1}
    assert run(["dump", pages[0]]) == 0
    assert "manifest page" in capsys.readouterr().out
    Path(pages[0]).chmod(0o600)
    Path(pages[0]).write_bytes(b"{}")
    assert run(["dump", pages[0]]) == 1
    assert pages[0] in capsys.readouterr().err


def test_unneeded_objects_are_collected_when_old_enough(
    uri: str, tmp_path: Path, bucket: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = str(tmp_path / "data")
    (row,) = items_of(capsys, "tier", "collect", "--dir", data, "--tier", uri)
    assert (row["roots"], row["left_for_later"]) == (0, 5)
    two_hours_ago = bucket.stat().st_mtime - 7_200
    for path in bucket.rglob("*"):
        os.utime(path, (two_hours_ago, two_hours_ago))
    (row,) = items_of(capsys, "tier", "collect", "--dir", data, "--tier", uri)
    assert row["roots"] == 0, "the roots themselves say when they were made"
    assert run(["tier", "collect", "--dir", data]) == 2
    assert "no tier is configured" in capsys.readouterr().err


def test_a_reader_shows_an_earlier_state(uri: str, tmp_path: Path) -> None:
    def values(**options: object) -> list[bytes | None]:
        with open_reader(uri, **options) as reader:  # type: ignore[arg-type] # the two kinds of as_of
            return [record.value for record in reader.log("t", 0).records()]

    assert values() == [b"1", b"2"]
    assert values(as_of=4) == [b"0", b"1", b"2"]
    assert values(as_of=datetime.now(UTC)) == [b"1", b"2"]
    with pytest.raises(ConfigError, match="cannot be read as of"):
        values(as_of=99)
    with pytest.raises(ConfigError, match="as_of needs a tier"):
        open_reader(tmp_path / "data", as_of=1)


def test_a_tier_without_an_engine_is_collected(
    tmp_path: Path, bucket: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    then_ms = round(bucket.stat().st_mtime * 1000) - 2 * GRACE_MS
    env = Env(clock=ManualClock(then_ms))
    with open_engine(tmp_path / "data", tier=bucket.as_uri(), env=env) as engine:
        engine.create_topic("t", config={"retention.bytes": -1, "retention.ms": -1})
        for number in range(3):
            engine.log("t", 0).append([Record(value=b"%d" % number)])
            engine.log("t", 0).roll()
        engine.offload()
        engine.log("t", 0).delete_records(1)
        engine.apply_retention()
    for path in bucket.rglob("*"):
        os.utime(path, (then_ms / 1000, then_ms / 1000))
    uri = bucket.as_uri()
    assert run(["tier", "gc", uri, "--topic", "t", "--topic", "misspelt"]) == 2
    assert "there is no topic misspelt" in capsys.readouterr().err
    (row,) = items_of(capsys, "tier", "gc", uri)
    assert (row["roots"], row["objects"], row["left_for_later"]) == (4, 1, 0)
    (row,) = items_of(capsys, "tier", "gc", uri)
    assert (row["roots"], row["objects"], row["left_for_later"]) == (0, 0, 0)
    with open_reader(uri) as reader:
        assert [record.value for record in reader.log("t", 0).records()] == [b"1", b"2"]


def test_rewrap_refuses_a_topic_that_the_tier_does_not_have(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tier", "rewrap", uri, "--topic", "misspelt"]) == 2
    assert "there is no topic misspelt" in capsys.readouterr().err
