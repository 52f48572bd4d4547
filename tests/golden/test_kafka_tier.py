"""Kafka's own remote layout, LocalTieredStorage, read where it is: the records of its clients, bounds, timestamps."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import golden_data
import stratalog
from golden_data import ISOLATIONS, Golden
from stratalog import TopicPartition

Unpacked = Callable[[str], Golden]
LOGS = [
    pytest.param(*found, id="/".join(map(str, found)))
    for found in golden_data.expected_logs(*golden_data.tiered_directories())
]


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize(("directory", "name"), LOGS)
def test_what_kafka_moved_away_is_read_as_its_clients_read_it(
    golden: Unpacked, directory: str, name: TopicPartition, isolation: str
) -> None:
    found = golden(directory)
    (remote,) = found.path.glob("remote/*")
    before = {path: path.stat().st_mtime_ns for path in remote.rglob("*")}
    with stratalog.open_reader(f"file://{remote}") as reader:
        log = reader.log(*name)
        offsets = log.offsets()
        bases = [int(path.name[:20]) for path in remote.glob(f"{name}-*/*.log")]
        expected = found.expected(name, isolation)
        end = offsets.log_end if isolation == "read_uncommitted" else offsets.last_stable
        assert offsets.log_start == min(bases)
        assert offsets.log_end > max(bases)
        assert [record for record in log.records(isolation=isolation) if record.offset >= expected.log_start] == [
            record for record in expected.records if record.offset < end
        ]
        assert len(reader.partitions()) == len({path.parent for path in remote.glob("*/*.log")})
    assert {path: path.stat().st_mtime_ns for path in remote.rglob("*")} == before
