from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Any

import pytest

import twins
from stored_batches import added, stored_batch
from stratalog.config.engine_settings import Limits
from stratalog.config.topic import TopicConfig
from stratalog.env import Env
from stratalog.env.handles import HandlePool
from stratalog.errors import CorruptBatchError, CorruptIndexError
from stratalog.model.offsets import OffsetPosition, TimestampOffset
from stratalog.model.prepared import PreparedBatches
from stratalog.model.segment_info import AbortedTransaction
from stratalog.spi.codecs import CodecTable
from stratalog.spi.indexes import IndexBuilder, IndexFormat
from stratalog.spi.providers import OpenContext
from stratalog.testing.contracts import IndexFormatContract
from stratalog_formats.indexes import PROVIDERS
from stratalog_formats.indexes.offset import OffsetIndex
from stratalog_formats.indexes.time import TimeIndex
from stratalog_formats.indexes.transaction import TransactionIndex
from vectors import VECTORS

SCENARIOS = {scenario["name"]: scenario for scenario in VECTORS["index_scenarios"]}
FILES = {vector["name"]: vector for vector in VECTORS["vectors"]}

# Fields of a V2 batch: base offset, size, last offset delta, largest timestamp. V0 has the first two.
FRAME, V2_TIMES = Struct(">qi4xb"), Struct(">i8xq")

T = 1_700_000_000_000
FORMATS = [made(kernels) for kernels in twins.twins() for made in (OffsetIndex, TimeIndex)]


class TestOffsetIndex(IndexFormatContract):
    @pytest.fixture(params=twins.TWINS)
    def index_format(self, request: pytest.FixtureRequest) -> IndexFormat[Any]:
        return OffsetIndex(twins.kernels_of(request.param))


class TestTimeIndex(IndexFormatContract):
    @pytest.fixture(params=twins.TWINS)
    def index_format(self, request: pytest.FixtureRequest) -> IndexFormat[Any]:
        return TimeIndex(twins.kernels_of(request.param))


class TestTransactionIndex(IndexFormatContract):
    @pytest.fixture
    def index_format(self) -> IndexFormat[Any]:
        return TransactionIndex()


def test_providers_open_formats_of_their_role() -> None:
    env = Env()
    context = OpenContext(env=env, limits=Limits(), handles=HandlePool(env.files, 8), codecs=CodecTable())
    formats = {provider.name: provider.open(context) for provider in PROVIDERS}
    assert {
        name: (index_format.role, index_format.suffix, index_format.entry_bytes)
        for name, index_format in formats.items()
    } == {
        "offset": ("offset", ".index", 8),
        "time": ("time", ".timeindex", 12),
        "transaction": ("transaction", ".txnindex", 34),
    }


# --- compared with files that Kafka wrote ----------------------------------------------------------------------------


def batches_of(data: bytes) -> Iterator[PreparedBatches]:
    position = 0
    while position < len(data):
        base, size, magic = FRAME.unpack_from(data, position)
        delta, timestamp = V2_TIMES.unpack_from(data, position + 23) if magic == 2 else (0, -1)
        yield stored_batch(position, size + 12, base, base + delta, timestamp)
        position += size + 12


def config_of(scenario: dict[str, Any]) -> TopicConfig:
    return TopicConfig(
        index_interval_bytes=scenario["index_interval_bytes"], segment_index_bytes=scenario["segment_index_bytes"]
    )


def log_of(scenario: dict[str, Any]) -> bytes:
    """Return the bytes of the segment, without an append that was refused."""
    appends = [bytes.fromhex(append["hex"]) for append in scenario["appends"]]
    return b"".join(appends)[: scenario["expected"]["log_size"]]


@pytest.mark.parametrize("name", [name for name in SCENARIOS if not name.startswith("truncate")])
@pytest.mark.parametrize("index_format", FORMATS)
def test_entries_are_those_of_kafkas_recovery(name: str, index_format: IndexFormat[Any]) -> None:
    scenario = SCENARIOS[name]
    builder = index_format.builder(scenario["base_offset"], config_of(scenario))
    entries = b"".join([*(added(builder, batch) for batch in batches_of(log_of(scenario))), builder.finish()])
    assert entries.hex() == scenario["expected"][f"{index_format.suffix[1:]}_after_recovery"]


@pytest.mark.parametrize(
    "name",
    ["one_batch_per_append", "interval_equal_to_batch_size", "interval_zero", "magic0_no_timestamps", "empty_segment"],
)
def test_the_closing_time_entry_is_written_at_the_roll(name: str) -> None:
    scenario = SCENARIOS[name]
    builder = TimeIndex().builder(scenario["base_offset"], config_of(scenario))
    before = b"".join(added(builder, batch) for batch in batches_of(log_of(scenario)))
    assert before.hex() == scenario["expected"]["timeindex_before_roll"]
    assert (before + builder.finish()).hex() == scenario["expected"]["timeindex_after_roll"]


@pytest.mark.parametrize("name", ["truncate_mid", "truncate_on_batch_start"])
@pytest.mark.parametrize("index_format", FORMATS)
def test_truncation_leaves_what_kafka_leaves(name: str, index_format: IndexFormat[Any]) -> None:
    scenario = SCENARIOS[name]
    config, base, end = config_of(scenario), scenario["base_offset"], scenario["then_truncate_to"]
    data = b"".join(bytes.fromhex(append["hex"]) for append in scenario["appends"])
    builder = index_format.builder(base, config)
    entries = b"".join(added(builder, batch) for batch in batches_of(data))
    kept_entries = entries[: index_format.kept_bytes(entries, base, end)]
    closing = index_format.builder(base, config, entries=kept_entries).finish()
    assert (kept_entries + closing).hex() == scenario["expected"][f"{index_format.suffix[1:]}_after_roll"]


@pytest.mark.parametrize("name", ["relative_offset_overflow", "offset_below_base"])
@pytest.mark.parametrize("index_format", FORMATS)
def test_offsets_that_do_not_fit_are_refused(name: str, index_format: IndexFormat[Any]) -> None:
    scenario = SCENARIOS[name]
    builder = index_format.builder(scenario["base_offset"], config_of(scenario))
    *accepted_batches, refused_batch = batches_of(
        b"".join(bytes.fromhex(append["hex"]) for append in scenario["appends"])
    )
    for batch in accepted_batches:
        added(builder, batch)
    with pytest.raises(CorruptBatchError) as caught:
        added(builder, refused_batch)
    assert caught.value.position == refused_batch.table.position[0]
    assert builder.finish().hex() == (
        scenario["expected"]["timeindex_after_roll"] if index_format.suffix == ".timeindex" else ""
    )


def test_files_of_kafka_are_read() -> None:
    offsets, times, aborted = (
        bytes.fromhex(FILES[name]["hex"]) for name in ("offset_index_trimmed", "time_index_trimmed", "txn_index")
    )
    inputs = FILES["offset_index_trimmed"]["inputs"]
    assert list(OffsetIndex().reader(offsets, 100)) == [OffsetPosition(*entry) for entry in inputs["entries"]]
    inputs = FILES["time_index_trimmed"]["inputs"]
    assert list(TimeIndex().reader(times, 100)) == [TimestampOffset(*entry) for entry in inputs["entries"]]
    inputs = FILES["txn_index"]["inputs"]
    assert list(TransactionIndex().reader(aborted, 100)) == [AbortedTransaction(*entry) for entry in inputs["entries"]]


def test_aborted_transactions_are_written_as_kafka_writes_them() -> None:
    vector = FILES["txn_index"]
    builder = TransactionIndex().builder(100, TopicConfig())
    entries = [added(builder, stored_batch(0, 61, 100, 100, T))]
    for entry in vector["inputs"]["entries"]:
        aborted = AbortedTransaction(*entry)
        entries.append(added(builder, stored_batch(0, 78, aborted.last_offset, aborted.last_offset, T), aborted))
    assert b"".join(entries).hex() == vector["hex"]


def test_zeros_of_an_index_that_kafka_preallocated_are_not_entries() -> None:
    entries = bytes.fromhex(FILES["offset_index_preallocated_83"]["hex"])
    with pytest.raises(CorruptIndexError) as caught:
        OffsetIndex().reader(entries, 100).check(200, 10_000)
    assert caught.value.position == 24


# --- edges -----------------------------------------------------------------------------------------------------------


def batch_at(last_offset: int, *, timestamp: int = T, size: int = 100, position: int | None = None) -> PreparedBatches:
    return stored_batch(last_offset * 100 if position is None else position, size, last_offset, last_offset, timestamp)


def test_the_interval_must_be_passed_not_reached() -> None:
    builder = OffsetIndex().builder(0, TopicConfig(index_interval_bytes=200))
    due = [offset for offset in range(10) if added(builder, batch_at(offset))]
    assert due == [3, 6, 9]  # 300 bytes came before each entry; 200 would not be more than the interval


def test_bytes_since_the_last_entry_are_forgotten_when_reopening() -> None:
    config = TopicConfig(index_interval_bytes=0)
    builder = OffsetIndex().builder(0, config)
    entries = b"".join(added(builder, batch_at(offset)) for offset in range(3))
    second_builder = OffsetIndex().builder(0, config, entries=entries)
    assert [bool(added(second_builder, batch_at(offset))) for offset in (3, 4)] == [False, True]


def test_the_largest_timestamp_is_that_of_the_first_batch_that_has_it() -> None:
    builder = TimeIndex().builder(0, TopicConfig())
    for offset, timestamp in enumerate((T, T + 5, T + 3, T + 5)):
        added(builder, batch_at(offset, timestamp=timestamp))
    assert list(TimeIndex().reader(builder.finish(), 0)) == [TimestampOffset(T + 5, 1)]


def test_a_continued_time_index_repeats_nothing() -> None:
    config = TopicConfig()
    first = TimeIndex().builder(0, config)
    added(first, batch_at(0, timestamp=T + 5))
    entries = first.finish()
    second_builder = TimeIndex().builder(0, config, entries=entries)
    assert second_builder.finish() == b""
    added(second_builder, batch_at(1, timestamp=T + 5))
    added(second_builder, batch_at(2, timestamp=T + 4))
    assert second_builder.finish() == b""
    added(second_builder, batch_at(3, timestamp=T + 6))
    assert list(TimeIndex().reader(second_builder.finish(), 0)) == [TimestampOffset(T + 6, 3)]


def filled(builder: IndexBuilder, first: int = 0) -> bytes:
    pieces, offset = [], first
    while not builder.full:
        pieces.append(added(builder, batch_at(offset, timestamp=T + offset)))
        offset += 1
    return b"".join(pieces)


@pytest.mark.parametrize(("size", "entries"), [(83, 10), (80, 10), (79, 9), (12, 1)])
def test_an_offset_index_is_full_at_its_size(size: int, entries: int) -> None:
    config = TopicConfig(index_interval_bytes=0, segment_index_bytes=size)
    builder = OffsetIndex().builder(0, config)
    index_bytes = filled(builder)
    assert len(index_bytes) == 8 * entries
    assert added(builder, batch_at(100)) + builder.finish() == b""
    assert OffsetIndex().builder(0, config, entries=index_bytes).full


@pytest.mark.parametrize(("size", "entries"), [(120, 10), (119, 9), (24, 2), (12, 1)])
def test_a_time_index_keeps_a_slot_for_its_closing_entry(size: int, entries: int) -> None:
    config = TopicConfig(index_interval_bytes=0, segment_index_bytes=size)
    builder = TimeIndex().builder(0, config)
    index_bytes = filled(builder)
    assert len(index_bytes) == 12 * (entries - 1)
    assert added(builder, batch_at(100, timestamp=T + 100)) == b""
    index_bytes += builder.finish()
    assert len(index_bytes) == 12 * entries
    assert TimeIndex().reader(index_bytes, 0)[-1] == TimestampOffset(T + 100, 100)
    second_builder = TimeIndex().builder(0, config, entries=index_bytes)
    added(second_builder, batch_at(101, timestamp=T + 101))
    assert second_builder.finish() == b""


def test_a_transaction_index_is_never_full() -> None:
    """If an aborted transaction were missing, its records would be visible. Kafka does not limit this index either."""
    builder = TransactionIndex().builder(0, TopicConfig(segment_index_bytes=12))
    index_bytes = b"".join(
        added(builder, stored_batch(0, 78, offset, offset, T), AbortedTransaction(1, offset, offset, offset))
        for offset in range(5)
    )
    assert len(index_bytes) == 5 * 34
    assert not builder.full


@pytest.mark.parametrize("index_format", [OffsetIndex(), TransactionIndex()])
def test_offsets_that_do_not_ascend_are_refused(index_format: IndexFormat[Any]) -> None:
    builder = index_format.builder(0, TopicConfig(index_interval_bytes=0))
    aborted = AbortedTransaction(1, 0, 5, 6)
    added(builder, batch_at(4))
    added(builder, stored_batch(100, 100, 5, 5, T), aborted)
    with pytest.raises(CorruptBatchError) as caught:
        added(builder, stored_batch(200, 100, 5, 5, T), aborted)
    assert caught.value.position == 200


def test_a_newer_maximum_at_an_older_offset_is_refused() -> None:
    builder = TimeIndex().builder(0, TopicConfig(index_interval_bytes=0))
    added(builder, batch_at(4))
    added(builder, batch_at(5, timestamp=T + 1))
    added(builder, batch_at(3, timestamp=T))
    with pytest.raises(CorruptBatchError):
        added(builder, batch_at(3, timestamp=T + 2))


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ((-1, 0), "offset"),
        ((10, 0), "offset"),
        ((9, 1000), "position"),
        ((9, -1), "position"),
    ],
)
def test_offset_entries_outside_the_segment_are_refused(entry: tuple[int, int], problem: str) -> None:
    reader = OffsetIndex().reader(Struct(">ii").pack(*entry), 100)
    with pytest.raises(CorruptIndexError, match=problem):
        reader.check(110, 1000)
    OffsetIndex().reader(Struct(">ii").pack(9, 999), 100).check(110, 1000)


@pytest.mark.parametrize("entry", [(-1, 0), (T, -1), (T, 10)])
def test_time_entries_outside_the_segment_are_refused(entry: tuple[int, int]) -> None:
    with pytest.raises(CorruptIndexError):
        TimeIndex().reader(Struct(">qi").pack(*entry), 100).check(110, 1000)
    TimeIndex().reader(Struct(">qi").pack(T, 9), 100).check(110, 1000)


@pytest.mark.parametrize(
    "entry",
    [
        (0, 1, 90, 99, 100),  # a marker before the segment
        (0, 1, 90, 110, 111),  # a marker after the segment
        (0, 1, 106, 105, 106),  # a transaction that ends before it begins
        (0, 1, 90, 105, 107),  # a last stable offset after the marker
        (0, 1, -1, 105, 106),
        (1 << 8, 1, 90, 105, 106),
    ],
)
def test_transaction_entries_outside_the_segment_are_refused(entry: tuple[int, ...]) -> None:
    with pytest.raises(CorruptIndexError):
        TransactionIndex().reader(Struct(">hqqqq").pack(*entry), 100).check(110, 1000)
    TransactionIndex().reader(Struct(">hqqqq").pack(0, 1, 90, 105, 106), 100).check(110, 1000)


def test_only_the_first_byte_of_a_version_is_checked() -> None:
    """Like Kafka, the reader checks only the high byte of a version, so that it accepts the versions 0 to 255."""
    layout = Struct(">hqqqq")
    reader = TransactionIndex().reader(layout.pack(255, 1, 2, 3, 4), 0)
    assert reader[0] == AbortedTransaction(1, 2, 3, 4)
    unknown = TransactionIndex().reader(layout.pack(0, 1, 2, 3, 4) + layout.pack(1 << 8, 1, 2, 5, 6), 0)
    assert unknown.floor(4) == AbortedTransaction(1, 2, 3, 4)
    for search in (lambda: list(unknown), lambda: unknown.floor(5), lambda: unknown.after(4)):
        with pytest.raises(CorruptIndexError) as caught:
            search()
        assert caught.value.position == 34
