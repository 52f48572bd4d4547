"""The follower of the page on replication keeps two engines equal, also after changes of the leader."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import pytest

import stratalog

PAGE = Path(__file__).parents[2] / "docs" / "replication.md"
SMALL = {"segment.bytes": 1000}
Replicate = Callable[[stratalog.Log, stratalog.Log], None]


@pytest.fixture(scope="module")
def page() -> dict[str, object]:
    """Run the Python blocks of the page, and return the names that they define."""
    names: dict[str, object] = {}
    for source in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        exec(source, names)  # noqa: S102 - our own page
    return names


@pytest.fixture(scope="module")
def replicate(page: dict[str, object]) -> Replicate:
    return cast(Replicate, page["replicate"])


def opened(path: Path) -> stratalog.Engine:
    return stratalog.open_engine(path, config={"watermark": "external"})


@pytest.fixture
def engines(tmp_path: Path) -> Iterator[tuple[stratalog.Engine, stratalog.Engine]]:
    with ExitStack() as stack:
        first, second = (stack.enter_context(opened(tmp_path / name)) for name in ("one", "two"))
        for engine in (first, second):
            engine.create_topic("orders", config=SMALL)
        yield first, second


def written(log: stratalog.Log, count: int) -> None:
    for _ in range(count):
        log.append([stratalog.Record(value=b"%d in %d" % (log.offsets().log_end, log.leader_epoch) + b"." * 90)])


def held(log: stratalog.Log) -> list[tuple[int, int, bytes | None]]:
    return [(record.offset, record.leader_epoch, record.value) for record in log.records(isolation="log_end")]


def caught_up(replicate: Replicate, leader: stratalog.Log, follower: stratalog.Log) -> None:
    for _ in range(100):
        replicate(leader, follower)
    leader.set_high_watermark(follower.offsets().log_end)
    replicate(leader, follower)
    assert held(follower) == held(leader)
    assert follower.offsets().high_watermark == leader.offsets().high_watermark == leader.offsets().log_end
    assert follower.view().epochs == leader.view().epochs


def test_logs_whose_leader_changes_end_up_the_same(
    replicate: Replicate, engines: tuple[stratalog.Engine, stratalog.Engine]
) -> None:
    first, second = (engine.log("orders", 0) for engine in engines)
    for epoch in range(1, 6):
        leader, follower = (first, second) if epoch % 2 else (second, first)
        leader.lead(epoch)
        follower.follow(epoch)
        written(leader, 12)
        for _ in range(epoch):
            replicate(leader, follower)
    caught_up(replicate, first, second)
    first.delete_records(first.offsets().high_watermark)
    engines[0].apply_retention()
    second.truncate_to(3)
    written(first, 3)
    caught_up(replicate, first, second)
    assert second.offsets().log_start == first.offsets().log_start


def test_truncated_records_stay_away_after_the_engine_is_reopened(
    replicate: Replicate, tmp_path: Path, engines: tuple[stratalog.Engine, stratalog.Engine]
) -> None:
    first, second = (engine.log("orders", 0) for engine in engines)
    written(first, 20)
    second.follow(0)
    caught_up(replicate, first, second)
    engines[1].flush()
    for log, end in ((first, 5), (second, 4)):
        log.follow(1)
        log.truncate_to(end)
    first.truncate_fully_and_start_at(2)
    folders = {
        name: (tmp_path / name / "recovery-point-offset-checkpoint").read_text().split() for name in ("one", "two")
    }
    assert [lines[-1] for lines in folders.values()] == ["2", "4"]
    engines[1].close()
    with opened(tmp_path / "two") as reopened_engine:
        assert [offset for offset, _, _ in held(reopened_engine.log("orders", 0))] == [0, 1, 2, 3]
        assert reopened_engine.log("orders", 0).is_leader


def test_markers_end_a_transaction_in_every_log_and_again(page: dict[str, object], tmp_path: Path) -> None:
    write_markers = cast(Callable[..., None], page["write_markers"])
    names = [("orders", 0), ("orders", 1)]
    with stratalog.open_engine(tmp_path / "engine") as engine:
        engine.create_topic("orders", partitions=2)
        logs = [engine.log(*name) for name in names]
        with engine.producer(transactional_id="t") as producer:
            producer.begin_transaction()
            for partition in range(2):
                producer.send("orders", value=b"v", partition=partition)
            producer.flush()
            (transaction,) = logs[0].open_transactions()
            for _ in range(2):
                write_markers(
                    engine, names, transaction.producer_id, transaction.producer_epoch, commit=True, coordinator_epoch=0
                )
            for log in logs:
                assert log.open_transactions() == []
                assert [record.value for record in log.records(isolation="read_committed")] == [b"v"]
