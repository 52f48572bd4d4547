"""The benchmark of Spark runs, and its small workers compact ten times as many bytes of keys as they may keep."""

from __future__ import annotations

import re

import pytest

from quick_run import quick_text

pytestmark = pytest.mark.usefixtures("has_spark", "has_java")


def test_a_quick_run_tells_every_row_but_the_peers() -> None:
    told = quick_text("spark.py", "--alone")
    rows = ["all columns to noop", "bytes by key, in Python", "to Parquet", "compact", "segments of 100 KB to noop"]
    for row in rows:
        assert re.search(rf"^{re.escape(row)}: [\d,]+ \w+\n  stratalog.* s  .* M/s  cpu ", told, re.MULTILINE), row
    read = re.search(r"^1 % of the time: ([\d.]+)% of the bytes are read$", told, re.MULTILINE)
    assert read is not None
    assert 0 < float(read[1]) < 100
    triggered = re.findall(
        r"^stream-trigger, (\d+) of 20 partitions changed: plan .* s, (\d+) requests; commits .* s$", told, re.MULTILINE
    )
    assert [int(changed) for changed, _ in triggered] == [20, 0, 2, 20, 0]
    for changed, requests in triggered:
        assert int(requests) <= 1 + 3 * int(changed)
    small = re.search(
        r"^compact with small workers: (.*) keys of (\d+) bytes, 10 times the (\d+) MiB", told, re.MULTILINE
    )
    assert small is not None
    keys, key_bytes, memory_mib = (int(number.replace(",", "")) for number in small.groups())
    assert keys * key_bytes >= 10 * memory_mib << 20
    left = re.search(r" records to ([\d,]+) in .* s, ([\d.]+) bytes shuffled a record", told)
    assert left is not None
    assert int(left[1].replace(",", "")) == keys
    assert 0 < float(left[2]) < 25, "so tasks told each other keys"
