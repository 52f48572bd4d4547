"""LogAppendTime: the timestamp in the log equals the timestamp in the result of the append."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog import Record, TimestampType, open_engine
from stratalog.env import Env
from stratalog.env.clock import ManualClock


class TickingClock(ManualClock):
    """A clock that advances by a millisecond each time it is read."""

    def now_ms(self) -> int:
        self.advance_ms(1)
        return super().now_ms()


@pytest.mark.parametrize("codec", ["uncompressed", "gzip"])
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("as_batches", [False, True])
def test_the_result_has_the_timestamp_that_is_stored(
    tmp_path: Path, version: int, codec: str, *, as_batches: bool
) -> None:
    """An earlier version read the clock twice, once for the bytes and once for the result."""
    config = {"record.version": version, "compression.type": codec}
    new_records = [Record(timestamp_ms=1, key=b"a"), Record(timestamp_ms=2, key=b"b")]
    with open_engine(tmp_path, env=Env(clock=TickingClock())) as engine:
        engine.create_topic("source", config=config)
        engine.create_topic("stamped", config={**config, "message.timestamp.type": "LogAppendTime"})
        log = engine.log("stamped", 0)
        if as_batches:
            engine.log("source", 0).append(new_records)
            with engine.log("source", 0).fetch(0) as fetched:
                results = [log.append_as_leader(fetched.read()) for _ in range(2)]
        else:
            results = [log.append(new_records) for _ in range(2)]
        read = list(log.records())
    assert [record.timestamp_ms for record in read] == [
        result.append_time_ms for result in results for _ in new_records
    ]
    assert {record.timestamp_type for record in read} == {TimestampType.LOG_APPEND_TIME}
    assert results[0].append_time_ms < results[1].append_time_ms
