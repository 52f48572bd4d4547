"""Statistics of jobs: hashes of keys, sketches of keys and timestamps, and the chart."""

from __future__ import annotations

import json
import random
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from compiled_twin import compiled_twin
from stratalog import TopicPartition
from stratalog.extensions import absence
from stratalog_spark.jobs.sketch import BINS, KEYS_ERROR, KeySketch, TimeSketch
from stratalog_spark.jobs.stats import PartitionStats
from stratalog_spark.jobs.stats_chart import stats_chart
from stratalog_spark.keys import hashes as key_hashes
from stratalog_spark.keys.hashes import hash_keys

SECRET = bytes(range(16))


@pytest.fixture(params=["python", "compiled"])
def hashes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    if request.param == "python":
        monkeypatch.setattr(key_hashes, "_twin", None)
    elif absence(key_hashes.EXTENSIONS[0]):
        pytest.skip(absence(key_hashes.EXTENSIONS[0]))
    return key_hashes


def binary(items: Sequence[bytes | None]) -> Any:
    return pa.array(items, pa.binary())


def test_equal_keys_have_equal_hashes_and_others_others(hashes: ModuleType) -> None:
    keys = [b"", b"a", b"b", b"a", b"longer than one word", b"\0", b"\0\0", None, b"", None]
    hash_rows = [tuple(row) for row in hashes.hash_keys(binary(keys), SECRET).tolist()]
    for first_key, first_hash in zip(keys, hash_rows, strict=True):
        for second_key, second_hash in zip(keys, hash_rows, strict=True):
            assert (first_hash == second_hash) is (first_key == second_key)
    assert [row == (0, 0) for row in hash_rows] == [key is None for key in keys]
    assert hashes.hash_keys(binary([b"a"]), bytes(16)).tolist() != [list(hash_rows[1])]


def test_a_slice_has_the_hashes_of_its_rows(hashes: ModuleType) -> None:
    keys = binary([b"%d" % number for number in range(50)])
    all_hashes = hashes.hash_keys(keys, SECRET)
    assert hashes.hash_keys(keys.slice(7, 20), SECRET).tolist() == all_hashes[7:27].tolist()
    assert hashes.hash_keys(keys.slice(50), SECRET).shape == (0, 2)


@pytest.mark.parametrize(
    ("ends", "data", "first", "count", "secret", "error"),
    [
        ((0, 5), b"abc", 0, 1, SECRET, IndexError),
        ((3, 1), b"abc", 0, 1, SECRET, IndexError),
        ((-1, 1), b"abc", 0, 1, SECRET, IndexError),
        ((0, 1), b"abc", 0, 2, SECRET, IndexError),
        ((0, 1), b"abc", -1, 1, SECRET, IndexError),
        ((0, 1), b"abc", 0, 1, b"short", ValueError),
    ],
)
def test_inconsistent_buffers_are_refused(
    ends: tuple[int, ...],
    data: bytes,
    first: int,
    count: int,
    secret: bytes,
    error: type[Exception],
) -> None:
    twin = compiled_twin("stratalog_spark.keys.hashes_c")
    raw = b"".join(end.to_bytes(4, "little", signed=True) for end in ends)
    with pytest.raises(error):
        twin.hash_items(raw, data, first, count, secret)


def test_a_secret_of_another_size_is_refused(hashes: ModuleType) -> None:
    with pytest.raises(ValueError, match="a secret has 16 bytes, not 5"):
        hashes.hash_keys(binary([b"a"]), b"short")


@pytest.mark.parametrize("count", [0, 1, 100, 20_000])
def test_keys_are_counted_within_five_standard_errors(count: int) -> None:
    keys = [b"key-%d" % number for number in range(count)]
    sketch, second_sketch = KeySketch(), KeySketch()
    sketch.add(hash_keys(binary(keys[: count // 2]), SECRET))
    second_sketch.add(hash_keys(binary(keys[count // 3 :] * 2), SECRET))
    sketch.merge(second_sketch)
    assert sketch.count() == pytest.approx(count, rel=5 * KEYS_ERROR)


def test_a_histogram_keeps_every_record_whatever_times_they_have() -> None:
    chance, total = random.Random(5), TimeSketch()  # noqa: S311 - the same in every run
    times: list[int] = []
    for scale in (10**3, 10**5, 10**9, 10**14):
        part, part_times = TimeSketch(), [chance.randrange(-scale, scale) for _ in range(200)]
        part.add(np.array(part_times, np.int64))
        part.add(np.array([], np.int64))
        total.merge(part)
        times += part_times
        assert sum(total.counts.values()) == len(times)
        assert len(total.counts) <= BINS
        assert (total.first_ms, total.last_ms) == (min(times), max(times))
        for number, count in total.counts.items():
            start = number * total.width_ms
            assert count == sum(start <= time < start + total.width_ms for time in times)


def test_the_picture_shows_each_partition_and_escapes_names() -> None:
    orders_stats = PartitionStats(TopicPartition("orders", 0), records=3, log_bytes=100)
    orders_stats.times.add(np.array([0, 4_000, 9_000], np.int64))
    chart = stats_chart([orders_stats, PartitionStats(TopicPartition("empty", 0))], "file:///a<b>&c")
    texts = [element.text or "" for element in ET.fromstring(chart).iter() if element.tag.endswith("text")]  # noqa: S314 - not foreign input
    assert "file:///a<b>&c" in texts
    assert any("2 topics, 2 partitions, 3 records" in text for text in texts)
    assert '<rect class="level-5"' in chart
    assert '<rect class="level-5"' not in stats_chart([PartitionStats(TopicPartition("empty", 0))], "nothing")
    assert "no record has a timestamp" in stats_chart([], "nothing")
    assert json.dumps(orders_stats.row())
