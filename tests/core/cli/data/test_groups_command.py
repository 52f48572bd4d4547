"""``stratalog groups``: committed offsets of consumer groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_runs import items_of
from stratalog import Record, TopicPartition, open_engine
from stratalog.cli.app import run

T0_MS = 1_700_000_000_000
ORDERS = [TopicPartition("orders", number) for number in range(2)]


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """Return a directory with ten records in each partition, a second apart.

    Group ``billing`` has committed offset 4 in partition 0 and 10 in partition 1.
    """
    with open_engine(tmp_path) as engine:
        engine.create_topic("orders", partitions=2)
        engine.create_topic("users")
        for name in ORDERS:
            engine.log(*name).append([Record(value=b"v", timestamp_ms=T0_MS + 1000 * number) for number in range(10)])
        engine.alter_group_offsets("billing", {ORDERS[0]: 4, ORDERS[1]: 10})
        engine.alter_group_offsets("audit", {ORDERS[0]: 0})
    return str(tmp_path)


def committed(folder: str, group: str) -> dict[TopicPartition, int]:
    with open_engine(folder) as engine:
        return {name: commit.offset for name, commit in engine.group_offsets(group).items()}


def test_the_list_names_topics_of_each_group(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert items_of(capsys, "groups", "list", "--dir", folder) == [
        {"group": "audit", "topics": "orders", "partitions": 1},
        {"group": "billing", "topics": "orders", "partitions": 2},
    ]


def test_the_lag_is_counted_from_the_high_watermark(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = items_of(capsys, "groups", "describe", "billing", "--dir", folder)
    assert [(row["partition"], row["committed"], row["high_watermark"], row["lag"]) for row in rows] == [
        (0, 4, 10, 6),
        (1, 10, 10, 0),
    ]


def test_groups_are_shown_while_an_engine_has_the_directory(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    with open_engine(folder):
        assert [row["group"] for row in items_of(capsys, "groups", "list", "--dir", folder)] == ["audit", "billing"]
        assert [row["lag"] for row in items_of(capsys, "groups", "describe", "billing", "--dir", folder)] == [6, 0]
        assert run(["groups", "delete", "billing", "--yes", "--dir", folder]) == 2
    assert committed(folder, "billing") == {ORDERS[0]: 4, ORDERS[1]: 10}


def test_a_directory_without_groups_is_only_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_engine(tmp_path) as engine:
        engine.create_topic("orders")
    before = sorted(entry.name for entry in tmp_path.iterdir())
    assert items_of(capsys, "groups", "list", "--dir", str(tmp_path)) == []
    assert run(["groups", "describe", "billing", "--dir", str(tmp_path)]) == 2
    assert "no group has any" in capsys.readouterr().err
    assert sorted(entry.name for entry in tmp_path.iterdir()) == before


def test_deleted_records_are_no_lag(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    with open_engine(folder) as engine:
        engine.log("orders", 0).delete_records(7)
    assert [row["lag"] for row in items_of(capsys, "groups", "describe", "billing", "--dir", folder)] == [3, 0]


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        ("beginning", [0, 0]),
        ("end", [10, 10]),
        ("-3", [7, 7]),
        ("-30", [0, 0]),
        ("2", [2, 2]),
        ("20", [10, 10]),
        (f"s@{T0_MS + 4500}", [5, 5]),
        (f"s@{T0_MS + 60_000}", [10, 10]),
    ],
)
def test_a_reset_commits_the_position(
    folder: str, position: str, expected: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    rows = items_of(capsys, "groups", "reset", "billing", "--to", position, "--dir", folder)
    assert [(row["before"], row["committed"]) for row in rows] == list(zip([4, 10], expected, strict=True))
    assert committed(folder, "billing") == dict(zip(ORDERS, expected, strict=True))


def test_a_dry_run_commits_nothing(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = items_of(capsys, "groups", "reset", "billing", "--to", "beginning", "--dry-run", "--dir", folder)
    assert [row["committed"] for row in rows] == [0, 0]
    assert committed(folder, "billing") == {ORDERS[0]: 4, ORDERS[1]: 10}


def test_a_new_group_begins_at_the_reset_policy_of_its_topic(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = items_of(capsys, "groups", "reset", "new", "orders", "users", "--to", "end", "--dir", folder)
    assert [(row["topic"], row["before"], row["committed"]) for row in rows] == [
        ("orders", None, 10),
        ("orders", None, 10),
        ("users", None, 0),
    ]
    assert committed(folder, "new") == {**dict.fromkeys(ORDERS, 10), TopicPartition("users", 0): 0}


def test_a_deleted_group_has_no_offsets(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert items_of(capsys, "groups", "delete", "billing", "--yes", "--dir", folder) == [
        {"group": "billing", "partitions": 2}
    ]
    assert committed(folder, "billing") == {}
    assert committed(folder, "audit") == {ORDERS[0]: 0}


def test_the_offsets_of_an_empty_name_are_not_reset(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["groups", "reset", "", "orders", "--to", "end", "--dir", folder]) == 2
    assert "group must not be empty" in capsys.readouterr().err
    assert committed(folder, "") == {}


@pytest.mark.parametrize("command", [["describe"], ["reset", "--to", "end"], ["delete", "--yes"]])
def test_an_unknown_group_is_an_error_that_names_groups(
    folder: str, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["groups", command[0], "biling", *command[1:], "--dir", folder]) == 2
    assert "groups: audit, billing" in capsys.readouterr().err


def test_a_reset_of_an_unknown_topic_changes_nothing(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["groups", "reset", "billing", "orders", "user", "--to", "end", "--dir", folder]) == 2
    assert "did you mean 'users'?" in capsys.readouterr().err
    assert committed(folder, "billing") == {ORDERS[0]: 4, ORDERS[1]: 10}
