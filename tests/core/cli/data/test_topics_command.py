"""``stratalog topics``: alter, delete, describe."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from command_runs import items_of, printed_items
from outages import Place, tiered
from sim_tier import URI
from stratalog import Record, open_engine
from stratalog.cli.app import run


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """Return a directory with a topic of three partitions; partition 0 also has a batch of an idempotent producer."""
    with open_engine(tmp_path) as engine:
        engine.create_topic("orders", partitions=3)
        for partition in range(3):
            engine.log("orders", partition).append([Record(value=b"v")] * 2)
        with engine.producer() as producer:
            producer.send("orders", value=b"p", partition=0)
    return str(tmp_path)


def test_settings_are_altered_and_taken_back(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    place = ("--dir", folder)
    assert items_of(capsys, "topics", "alter", "orders", "--set", "retention.ms=5", *place) == [
        {"topic": "orders", "setting": "retention.ms", "value": 5}
    ]
    assert items_of(capsys, "topics", "alter", "orders", "--unset", "retention.ms", *place)[0]["value"] == 604_800_000
    assert run(["topics", "alter", "orders", *place]) == 2
    assert run(["topics", "alter", "nosuch", "--set", "retention.ms=5", *place]) == 2
    assert run(["topics", "alter", "orders", "--set", "retention.mss=5", *place]) == 2
    assert "retention.ms" in capsys.readouterr().err


def test_a_topic_is_deleted_after_confirmation(
    folder: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for answer, text in (("n\n", "nothing was deleted"), ("", "--yes")):  # no response: the input of a script has ended
        monkeypatch.setattr("sys.stdin", io.StringIO(answer))
        assert run(["topics", "delete", "orders", "--dir", folder]) == 2
        assert text in capsys.readouterr().err
    assert run(["topics", "delete", "nosuch", "--dir", folder]) == 2  # no question for a topic that does not exist
    assert capsys.readouterr().err.startswith("error: there is no topic nosuch")
    assert len(items_of(capsys, "topics", "list", "--dir", folder)) == 1
    assert items_of(capsys, "topics", "delete", "orders", "--yes", "--dir", folder) == [{"topic": "orders"}]
    assert items_of(capsys, "topics", "list", "--dir", folder) == []
    assert list(Path(folder).glob("orders-*")) == []


def test_all_of_a_topic_is_described(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    items = items_of(capsys, "topics", "describe", "orders", "--dir", folder)
    bounds = [item for item in items if "log_end" in item]
    assert [(item["partition"], item["recovery_point"], item["log_end"]) for item in bounds] == [
        (0, 3, 3),
        (1, 2, 2),
        (2, 2, 2),
    ]
    assert [item["partition"] for item in items if "where" in item] == [0, 1, 2]
    assert [(item["leader_epoch"], item["start_offset"]) for item in items if "leader_epoch" in item] == [(0, 0)] * 3
    (producer,) = (item for item in items if "producer_id" in item)
    assert (producer["partition"], producer["last_offset"], producer["open_transaction"]) == (0, 2, None)


def test_a_topic_of_a_tier_is_described_with_its_settings(
    tmp_path: Path, bucket: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uri = bucket.as_uri()
    with open_engine(tmp_path / "data", tier=uri) as engine:
        engine.create_topic("orders", config={"retention.ms": 12345})
        engine.log("orders", 0).append([Record(value=b"v")])
        engine.log("orders", 0).roll()
        engine.offload()
    assert run(["topics", "describe", "orders", "--tier", uri]) == 0
    assert "retention.ms" in (output := capsys.readouterr().out)
    assert "12,345" in output
    roots = [path for path in bucket.rglob("*") if path.is_file() and b"retention.ms" in path.read_bytes()]
    assert roots
    for root in roots:
        root.write_bytes(b"nonsense")
    assert run(["topics", "describe", "orders", "--tier", uri]) == 1


def test_describe_continues_after_a_partition_that_cannot_be_read(
    folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (Path(folder) / "orders-1" / "leader-epoch-checkpoint").write_text("nonsense")
    assert run(["topics", "describe", "orders", "--dir", folder, "--json"]) == 1
    items = printed_items(capsys)
    bounds = [item for item in items if "log_end" in item]
    assert [item["log_end"] for item in bounds] == [3, None, 2]
    assert "leader-epoch-checkpoint" in bounds[1]["error"]


def test_a_topic_is_described_as_far_as_it_is_known_while_its_store_is_away(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiered(Place(tmp_path))
    config = tmp_path / "stratalog.toml"
    config.write_text('"plugins.modules" = ["silent_store"]\n"store.retries" = 0\n')
    place = ("--dir", str(tmp_path / "data"), "--tier", URI, "--config", str(config))
    assert run(["topics", "describe", "t", *place, "--json"]) == 1
    items = printed_items(capsys)
    (bounds,) = [item for item in items if "log_start" in item]
    assert (bounds["log_start"], bounds["local_log_start"], bounds["log_end"]) == (0, 4, 6)
    assert "the store of the tier has been unavailable" in bounds["error"]
    assert [item["base_offset"] for item in items if "where" in item] == [4, 5]
    assert run(["topics", "list", *place]) == 2


# --- folders that are not log directories ------------------------------------------------------------------------

READS = [["topics", "list"], ["topics", "describe", "orders"], ["consume", "orders"], ["explain", "orders", "0", "0"]]
WRITES = [
    ["topics", "create", "more"], ["produce", "orders", "/dev/null"], ["retention"], ["cleaner"],
    ["offload", "--tier", "file:///nowhere"],
]  # fmt: skip


@pytest.mark.parametrize("command", [*READS, *WRITES], ids=lambda command: " ".join(command[:2]))
def test_the_folder_of_a_log_is_no_log_directory(
    folder: str, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    log = Path(folder) / "orders-0"
    before = sorted(path.name for path in log.iterdir())
    command = [word.replace("file:///nowhere", Path(folder).as_uri()) for word in command]
    assert run([*command, "--dir", str(log)]) == 2
    assert f": use its log directory, {folder}\n" in capsys.readouterr().err
    assert sorted(path.name for path in log.iterdir()) == before


@pytest.mark.parametrize("command", [*READS, WRITES[0], WRITES[2]], ids=lambda command: " ".join(command[:2]))
def test_folders_that_are_named_like_logs_are_no_topics(
    tmp_path: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A directory like ``/etc`` has the folders ``dbus-1`` and ``polkit-1``, which are not logs."""
    (tmp_path / "dbus-1").mkdir()
    (tmp_path / "dbus-1" / "system.conf").write_text("", encoding="utf-8")
    assert run([*command, "--dir", str(tmp_path)]) == 2
    assert str(tmp_path) in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["dbus-1"]


@pytest.mark.parametrize("command", [["topics", "list", "--dir"], ["verify"], ["recover"]])
def test_a_log_directory_may_be_named_like_a_log(tmp_path: Path, command: list[str]) -> None:
    with open_engine(tmp_path / "disk-1") as engine:
        engine.create_topic("orders")
        engine.log("orders", 0).append([Record(value=b"v")])
    assert run([*command, str(tmp_path / "disk-1")]) == 0


def test_partitions_are_added(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    place = ("--dir", folder)
    assert items_of(capsys, "topics", "alter", "orders", "--partitions", "5", "--set", "retention.ms=5", *place) == [
        {"topic": "orders", "setting": "retention.ms", "value": 5},
        {"topic": "orders", "setting": "partitions", "value": 5},
    ]
    assert run(["topics", "alter", "orders", "--partitions", "4", *place]) == 2
    assert "4 would not be an increase" in capsys.readouterr().err
    with open_engine(folder) as engine:
        assert engine.topics()["orders"].partitions == (0, 1, 2, 3, 4)
