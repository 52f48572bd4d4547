"""Directories of a broker with a tier: the local segments alone, and the segments of both tiers in one directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache

import pytest

import golden_data
import stratalog
from golden_data import ISOLATIONS, Golden
from golden_reading import fetched_records
from stratalog import Engine, Reader, TopicPartition
from stratalog.segment.components import Components

Unpacked = Callable[[str], Golden]
Assembled = Callable[[str], Reader]
Local = Callable[[str, str], Engine | Reader]

LOGS = [
    pytest.param(*found, id="/".join(map(str, found)))
    for found in golden_data.expected_logs(*golden_data.tiered_directories())
]
every_log = pytest.mark.parametrize(("directory", "name"), LOGS)
both_isolations = pytest.mark.parametrize("isolation", ISOLATIONS)


@pytest.fixture(scope="module")
def assembled(golden: Unpacked, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Assembled]:
    """Yield a function that opens a directory with the segments of both tiers; each is opened once."""
    with ExitStack() as stack:

        @cache
        def open_once(directory: str) -> Reader:
            folder = golden(directory).assemble(tmp_path_factory.mktemp("assembled") / "logs")
            return stack.enter_context(stratalog.open_reader(folder))

        yield open_once


@pytest.fixture(scope="module")
def local(golden: Unpacked, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    """Yield a function that opens only the local segments of a directory; each is opened once.

    A reader opens the directory in place, an engine opens a copy.
    """
    with ExitStack() as stack:

        @cache
        def open_once(way: str, directory: str) -> Engine | Reader:
            if way == "reader":
                return stack.enter_context(stratalog.open_reader(golden(directory).logs))
            copy = golden(directory).copy_logs(tmp_path_factory.mktemp("local") / "logs")
            return stack.enter_context(stratalog.open_engine(copy))

        yield open_once


@pytest.mark.parametrize("way", ["reader", "engine"])
@both_isolations
@every_log
def test_the_local_part_alone_holds_the_records_from_the_local_log_start_on(
    golden: Unpacked, local: Local, directory: str, name: TopicPartition, isolation: str, way: str
) -> None:
    unpacked = golden(directory)
    expected = unpacked.expected(name, isolation)
    first_local = min(int(file.stem) for file in (unpacked.logs / str(name)).glob("*.log"))
    log = local(way, directory).log(*name)
    offsets = log.offsets()
    assert offsets.log_start == offsets.local_log_start == max(first_local, expected.log_start)
    assert (offsets.high_watermark if isolation == "read_uncommitted" else offsets.last_stable) == expected.end
    assert list(log.records(isolation=isolation)) == expected.from_offset(offsets.log_start)


@both_isolations
@every_log
def test_both_tiers_together_hold_every_record(
    golden: Unpacked, assembled: Assembled, components: Components, directory: str, name: TopicPartition, isolation: str
) -> None:
    expected = golden(directory).expected(name, isolation)
    log = assembled(directory).log(*name)
    assert list(log.records(isolation=isolation)) == expected.records
    assert fetched_records(log, 1000, isolation, components) == expected.records
    offsets = log.offsets()
    assert offsets.log_start == expected.log_start
    assert (offsets.high_watermark if isolation == "read_uncommitted" else offsets.last_stable) == expected.end


@every_log
def test_offsets_for_timestamps_are_the_brokers_answers(
    golden: Unpacked, assembled: Assembled, directory: str, name: TopicPartition
) -> None:
    queries = golden(directory).listed_offsets(name)
    log = assembled(directory).log(*name)
    assert queries
    assert {
        (query.isolation, query.query_ms): log.offset_for_timestamp(query.query_ms, query.isolation)
        for query in queries
    } == {(query.isolation, query.query_ms): None if query.offset < 0 else query.offset for query in queries}
