"""The leader epoch of a log that a broker has led before: no lower than any epoch that the broker's clients know."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog import Record, open_engine

BROKER_EPOCH = 4


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory that a broker has led in epoch 4 without an append, and then stopped cleanly."""
    with open_engine(tmp_path) as engine:
        engine.create_topic("orders")
        engine.log("orders").append([Record(value=b"1"), Record(value=b"2")])
    led_by_broker(tmp_path)
    return tmp_path


def led_by_broker(folder: Path) -> None:
    (folder / "orders-0" / "leader-epoch-checkpoint").write_text(f"0\n2\n0 0\n{BROKER_EPOCH} 2\n")
    (folder / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":17}')


def epochs(folder: Path, **config: object) -> tuple[int, list[int]]:
    """Return the leader epoch of the log, and the epochs of its records."""
    with open_engine(folder, config=config) as engine:
        log = engine.log("orders")
        return log.leader_epoch, [record.leader_epoch for record in log.records(isolation="log_end")]


def test_it_is_the_one_in_which_the_broker_would_start(folder: Path) -> None:
    with open_engine(folder) as engine:
        engine.log("orders").append([Record(value=b"3")])
    assert epochs(folder) == (BROKER_EPOCH + 2, [0, 0, BROKER_EPOCH + 2])


def test_it_stays_without_an_append(folder: Path) -> None:
    assert [epochs(folder)[0] for _ in range(3)] == [BROKER_EPOCH + 2] * 3


def test_after_a_crash_it_is_the_one_in_which_the_broker_led(folder: Path) -> None:
    (folder / ".kafka_cleanshutdown").unlink()
    (folder / "__cluster_metadata-0").mkdir()
    assert epochs(folder)[0] == BROKER_EPOCH


def test_a_replica_gets_its_epochs_from_its_controller(folder: Path) -> None:
    assert epochs(folder, watermark="external")[0] == 0


def test_a_marker_without_contents_is_that_of_an_older_broker(folder: Path) -> None:
    (folder / ".kafka_cleanshutdown").write_bytes(b"")
    assert epochs(folder)[0] == BROKER_EPOCH + 2
