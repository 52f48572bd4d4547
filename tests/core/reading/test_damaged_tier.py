"""Bits that flip between a tier and its reader: the batch CRC detects them, and the object is read again."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim_objects import SimBucket, SimObjectStore
from sim_tier import URI, SimTier
from stratalog import Reader, Record, open_engine, open_reader
from stratalog.env import SystemClock
from stratalog.errors import CorruptionError


class FlippingStore(SimObjectStore):
    """Object store that flips one bit in the middle of the next reads of segment objects."""

    def __init__(self, bucket: SimBucket, plan: FlippingPlugin) -> None:
        super().__init__(bucket)
        self._plan = plan

    def read(self, key: str, start: int | None = None, end: int | None = None, *, deadline_ns: int) -> bytes:
        data = super().read(key, start, end, deadline_ns=deadline_ns)
        if "/segments/" not in key or self._plan.flips == 0 or len(data) < 1000:
            return data
        self._plan.flips -= 1
        middle = len(data) // 4
        return data[:middle] + bytes((data[middle] ^ 0x10,)) + data[middle + 1 :]


class FlippingPlugin(SimTier):
    """Plugin whose store damages the results of the next ``flips`` reads."""

    def __init__(self) -> None:
        self.flips = 0
        super().__init__(SimBucket(clock=SystemClock()))

    def connected(self) -> SimObjectStore:
        return FlippingStore(self.bucket, self)


@pytest.fixture
def plugin(tmp_path: Path) -> FlippingPlugin:
    flipping_plugin = FlippingPlugin()
    with open_engine(tmp_path, tier=URI, plugins=[flipping_plugin]) as engine:
        engine.create_topic("orders")
        log = engine.log("orders", 0)
        for start in range(0, 200, 20):
            log.append([Record(timestamp_ms=number, value=b"%d" % number * 50) for number in range(start, start + 20)])
        log.roll()
        (result,) = engine.offload()
        assert result.size_bytes > 20_000
    return flipping_plugin


def opened(plugin: FlippingPlugin) -> Reader:
    return open_reader(URI, plugins=[plugin])


def test_records_are_right_after_one_damaged_reply(plugin: FlippingPlugin) -> None:
    plugin.flips = 1
    with opened(plugin) as reader:
        offsets = [record.offset for record in reader.log("orders", 0).records()]
    assert plugin.flips == 0, "nothing was flipped"
    assert offsets == list(range(200))


def test_raw_batches_are_right_after_one_damaged_reply(plugin: FlippingPlugin) -> None:
    with opened(plugin) as reader:
        expected = reader.log("orders", 0).fetch(0, max_bytes=1 << 20).read()
    plugin.flips = 1
    with opened(plugin) as reader:
        first_batches = reader.log("orders", 0).fetch(0, max_bytes=1 << 20).read()
        second_batches = reader.log("orders", 0).fetch(0, max_bytes=1 << 20).read()
    assert plugin.flips == 0, "nothing was flipped"
    assert expected.startswith(first_batches)
    assert first_batches
    assert second_batches


def test_an_object_that_is_damaged_for_good_is_named_with_the_position(plugin: FlippingPlugin) -> None:
    plugin.flips = 1 << 30
    with opened(plugin) as reader:
        log = reader.log("orders", 0)
        offsets: list[int] = []
        with pytest.raises(CorruptionError, match=r"segments/00000000000000000000.*position=\d+"):
            offsets.extend(record.offset for record in log.records())
        assert offsets == list(range(len(offsets)))
