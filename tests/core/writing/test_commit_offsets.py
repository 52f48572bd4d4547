"""Offsets that a program commits for a group without an engine, and their use by the group's next consumer."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog import CommittedOffset, Record, RecordColumns, TopicPartition, open_engine
from stratalog.errors import ConfigError
from stratalog.writing import WriteTarget, commit_offsets

FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)


def filled(target: WriteTarget) -> None:
    """Create a topic with ten records in its first partition."""
    with target.open() as writer:
        writer.create_topic("orders", 2)
        with writer.stage(FIRST) as stage:
            stage.add(RecordColumns.from_records([Record(timestamp_ms=1, value=b"v") for _ in range(10)]))
            writer.append(FIRST, stage.finish())


@pytest.mark.parametrize("is_tier", [False, True])
def test_a_consumer_continues_at_the_offsets_that_were_committed_last(tmp_path: Path, *, is_tier: bool) -> None:
    (tmp_path / "bucket").mkdir()
    target = WriteTarget((tmp_path / "bucket").as_uri() if is_tier else str(tmp_path / "data"))
    filled(target)
    for offset in (3, 7):
        with target.open() as writer:
            commit_offsets(writer, "billing", {FIRST: offset, SECOND: 0})
            commit_offsets(writer, "audit", {FIRST: 1})
    tier = target.location if is_tier else None
    with open_engine(tmp_path / "data", tier=tier, attach=is_tier) as engine:
        with engine.consumer(group="billing", topics=["orders"]) as consumer:
            assert consumer.committed() == {FIRST: CommittedOffset(7), SECOND: CommittedOffset(0)}
            assert [record.offset for _, records in consumer.poll(timeout_ms=0).items() for record in records] == [
                7,
                8,
                9,
            ]
        with engine.consumer(group="audit", topics=["orders"]) as consumer:
            assert consumer.committed() == {FIRST: CommittedOffset(1)}


def test_a_negative_offset_is_refused_and_nothing_is_committed(tmp_path: Path) -> None:
    target = WriteTarget(str(tmp_path / "data"))
    filled(target)
    with target.open() as writer, pytest.raises(ConfigError, match="at least 0, not -1"):
        commit_offsets(writer, "billing", {FIRST: 3, SECOND: -1})
    with open_engine(tmp_path / "data") as engine, engine.consumer(group="billing", topics=["orders"]) as consumer:
        assert consumer.committed() == {}
