"""``kill -9`` of the gateway under load: no acknowledged record is lost, and read_committed shows no record twice."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from random import Random
from typing import Final

import pytest

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")

from gateway_load import DONE, GROUP, PARTITIONS, PLAIN, TOGETHER, WHOLE, Killable, Load
from ports import free_ports
from stratalog import Engine, TopicPartition, open_engine

ROUNDS: Final = int(os.environ.get("GATEWAY_KILL_ROUNDS", "3"))
SEED: Final = int(os.environ.get("GATEWAY_KILL_SEED", "1"))


def committed(engine: Engine, topic: str) -> Counter[bytes | None]:
    return Counter(
        record.value
        for partition in range(PARTITIONS)
        for record in engine.log(topic, partition).records(isolation="read_committed")
    )


@pytest.mark.long
@pytest.mark.timeout(120 + 60 * ROUNDS)
def test_clients_lose_nothing_and_see_nothing_twice(tmp_path: Path) -> None:
    chance = Random(SEED)  # noqa: S311 - the same moments in each run
    with open_engine(tmp_path) as engine:
        for topic in (PLAIN, DONE, WHOLE):
            engine.create_topic(topic, partitions=PARTITIONS, config={"segment.bytes": 1 << 16})
    with Killable(tmp_path, free_ports(1)[0]) as gateway:
        gateway.start()
        load = Load(gateway.bootstrap)
        load.start()
        try:
            for _ in range(ROUNDS):
                load.wait(chance.randint(1, 5))
                gateway.kill()
                gateway.start()
            load.wait(5)
        finally:
            load.finish()
        gateway.stop()
    with open_engine(tmp_path) as engine:
        plain_counts, done_counts, whole_counts = (committed(engine, topic) for topic in (PLAIN, DONE, WHOLE))
        assert set(plain_counts) >= set(load.acknowledged)
        assert set(plain_counts.values()) | set(done_counts.values()) | set(whole_counts.values()) == {1}
        assert done_counts == plain_counts
        transactions = Counter(int((value or b"").split()[0]) for value in whole_counts)
        assert set(transactions.values()) == {TOGETHER}
        assert set(load.committed) <= set(transactions)
        assert not set(load.aborted) & set(transactions)
        ends = {TopicPartition(PLAIN, number): engine.log(PLAIN, number).offsets() for number in range(PARTITIONS)}
        offsets = {name: group_offset.offset for name, group_offset in engine.group_offsets(GROUP).items()}
        assert offsets == {name: bounds.log_end for name, bounds in ends.items()}
        for name in engine.partitions():
            assert engine.log(*name).open_transactions() == []
    assert load.worked > ROUNDS
