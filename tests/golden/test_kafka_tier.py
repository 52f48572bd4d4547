"""Kafka's own remote layout, LocalTieredStorage, read in place: the results are those of Kafka's clients."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

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
def test_segments_in_kafkas_tier_read_as_kafkas_clients_read_them(
    golden: Unpacked, directory: str, name: TopicPartition, isolation: str
) -> None:
    unpacked = golden(directory)
    (remote,) = unpacked.path.glob("remote/*")
    original_times = {path: path.stat().st_mtime_ns for path in remote.rglob("*")}
    with stratalog.open_reader(f"file://{remote}") as reader:
        log = reader.log(*name)
        offsets = log.offsets()
        bases = [int(path.name[:20]) for path in remote.glob(f"{name}-*/*.log")]
        expected = unpacked.expected(name, isolation)
        end = offsets.log_end if isolation == "read_uncommitted" else offsets.last_stable
        assert offsets.log_start == min(bases)
        assert offsets.log_end > max(bases)
        assert [record for record in log.records(isolation=isolation) if record.offset >= expected.log_start] == [
            record for record in expected.records if record.offset < end
        ]
        assert len(reader.partitions()) == len({path.parent for path in remote.glob("*/*.log")})
    assert {path: path.stat().st_mtime_ns for path in remote.rglob("*")} == original_times


@pytest.mark.parametrize(("directory", "name"), LOGS)
def test_a_refresh_shows_the_segments_that_kafka_moved_and_deleted_since(
    golden: Unpacked, directory: str, name: TopicPartition, tmp_path: Path
) -> None:
    (remote,) = golden(directory).path.glob("remote/*")
    place = tmp_path / "remote"
    shutil.copytree(remote, place)
    bases = sorted({path.name[:20] for path in place.glob(f"{name}-*/*.log")})
    (folder,) = place.glob(f"{name}-*")
    later = [path for path in folder.iterdir() if path.name[:20] == bases[-1]]
    for path in later:
        path.rename(tmp_path / path.name)
    with stratalog.open_reader(place.as_uri()) as reader:
        log = reader.log(*name)
        assert log.offsets().log_end == int(bases[-1])
        assert reader.refresh() == ()
        for path in later:
            (tmp_path / path.name).rename(path)
        assert reader.refresh() == (name,)
        assert log.offsets().log_end > int(bases[-1])
        assert list(log.records(int(bases[-1])))
        for path in list(folder.iterdir()):
            if path.name[:20] == bases[0]:
                path.unlink()
        assert reader.refresh() == (name,)
        assert log.offsets().log_start == int(bases[1])


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize(("directory", "name"), LOGS)
def test_a_brokers_directory_and_what_it_moved_away_are_one_log(
    golden: Unpacked, directory: str, name: TopicPartition, isolation: str
) -> None:
    unpacked = golden(directory)
    (remote,) = unpacked.path.glob("remote/*")
    expected = unpacked.expected(name, isolation)
    with stratalog.open_reader(unpacked.logs, tier=f"file://{remote}") as reader:
        log = reader.log(*name)
        offsets = log.offsets()
        end = offsets.high_watermark if isolation == "read_uncommitted" else offsets.last_stable
        assert (offsets.log_start, end) == (expected.log_start, expected.end)
        assert list(log.records(isolation=isolation)) == expected.records
        for start in range(offsets.log_start, offsets.log_end, 7):
            assert list(log.records(max(start, 1), isolation=isolation)) == expected.from_offset(max(start, 1))
        for query in unpacked.listed_offsets(name):
            offset = log.offset_for_timestamp(query.query_ms, query.isolation)
            assert (-1 if offset is None else offset) == query.offset
