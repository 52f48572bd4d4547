"""One flipped bit in each byte of a log's tier, in every layout: a read is correct or raises an error."""

from __future__ import annotations

import random
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeAlias

import pytest

from sim_tier import URI
from stratalog import Record, open_reader
from stratalog.env.clock import ManualClock
from stratalog.errors import CorruptionError
from stratalog.log.read.log_reader import LogReader
from stratalog.spi.formats import BatchHeader
from tiered_logs import TieredLogs, remote_of

Read: TypeAlias = Callable[[LogReader], object]
START_MS: Final = ManualClock().now_ms()
HEAD_BYTES: Final = 17  # first bytes of a batch, which no CRC covers
EPOCH_BYTES: Final = range(12, 16)  # of the first bytes; a wrong leader epoch cannot be detected
UNCACHED: Final = {"limits.chunk.cache.bytes": 0, "limits.index.cache.bytes": 0, "limits.prefetch.bytes": 0}
WHOLE: Final = ("all", "committed", "fetch all")  # reads of the whole log, which check the hash of the file
REACHED: Final = 200  # position of a byte of the records 3 to 5
SOME: Final = 100
LAYOUTS: Final = (
    "single",
    "plain",
    "chunked",
    "encrypted single",
    "encrypted plain",
    "encrypted chunked",
    "parquet",
    "encrypted parquet",
)


@pytest.fixture(params=LAYOUTS)
def logs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TieredLogs]:
    layout, _, inner_layout = request.param.partition(" ")
    (tmp_path / "keys.toml").write_text(f'active = "a"\n[keys]\na = "{b64encode(bytes(32)).decode()}"\n', "utf-8")
    (tmp_path / "keys.toml").chmod(0o600)
    encrypted = {"keys.file": str(tmp_path / "keys.toml"), "over": inner_layout or "single", "chunk.bytes": 1024}
    plugins = {"encrypted": encrypted, "chunked": {"chunk.bytes": 4096}}
    tiered_logs = TieredLogs(tmp_path, settings={"plugins": plugins, "retain": layout})
    yield tiered_logs
    tiered_logs.close()


def stored(logs: TieredLogs) -> None:
    """Write a closed segment of five batches to the tier, and evict it. One batch is of an aborted transaction."""
    layout = logs.settings.pop("retain")
    engine = logs.engine()
    settings = {"tier.layout": layout, "local.retention.bytes": 0, "index.interval.bytes": 1, "retention.ms": -1}
    engine.create_topic("t", config={"remote.storage.enable": True, **settings})
    log, chance = engine.log("t", 0), random.Random(5)  # noqa: S311 - a seed repeats it
    for first in (0, 3):
        log.append([record(first + number, chance.randbytes(20)) for number in range(3)])
    of_transaction = BatchHeader(base_offset=0, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    log.append_as_leader(
        bytes(log.components.formats.of(2, "", 0).encode([record(6, b"")], of_transaction, None, None))
    )
    log.end_transaction(7, 0, commit=False, coordinator_epoch=0)
    log.append([record(8, b"v" * 100)])
    log.roll()
    engine.offload()
    engine.apply_retention()
    assert log.offsets().local_log_start == log.offsets().log_end == 9


def record(offset: int, value: bytes) -> Record:
    return Record(timestamp_ms=START_MS + offset, key=b"k", value=value)


def one_record(offset: int) -> Read:
    return lambda log: list(log.records(offset, offset + 1))


def searched(offset: int) -> Read:
    return lambda log: log.offset_for_timestamp(START_MS + offset)


def fetched(offset: int, max_bytes: int) -> Read:
    def read(log: LogReader) -> object:
        with log.fetch(offset, max_bytes, "read_committed") as batches:
            return batches.read(), batches.next_offset, batches.aborted_transactions

    return read


READS: Final[dict[str, Read]] = {
    "all": lambda log: list(log.records()),
    "committed": lambda log: list(log.records(isolation="read_committed")),
    **{f"record {offset}": one_record(offset) for offset in (0, 4, 6, 8)},
    **{f"fetch {offset}": fetched(offset, 1) for offset in (0, 1, 4, 6, 7, 8)},
    "fetch all": fetched(0, 1 << 20),
    "fetch rest": fetched(4, 1 << 20),
    **{f"time {offset}": searched(offset) for offset in (0, 2, 4, 6, 8)},
}


def heads(log: LogReader, data: bytes) -> dict[int, int]:
    """Return the positions of bytes in an object that no CRC of a batch covers, with their position in the batch.

    The result is empty if the object contains no uncompressed log.
    """
    (segment,) = remote_of(log).segments
    log_bytes = bytes(segment.read(0, segment.size_bytes))
    log_position = data.find(log_bytes)
    table = log.components.formats.of(2, "", 0).scan(log_bytes, 0, len(log_bytes), check_crc=True)
    return (
        {log_position + start + byte: byte for start in table.position for byte in range(HEAD_BYTES)}
        if log_position >= 0
        else {}
    )


def is_right(actual: object, expected: object) -> bool:
    """Return True if a read returned all records, or, for a fetch, the batches before the damage."""
    if isinstance(actual, tuple) and isinstance(expected, tuple):
        return expected[0].startswith(actual[0]) and bool(actual[0])
    return actual == expected


@pytest.mark.long
def test_a_flipped_bit_anywhere_is_harmless_or_reported(logs: TieredLogs) -> None:
    stored(logs)
    bucket, chance, reports = logs.sim.bucket, random.Random(6), 0  # noqa: S311 - a seed repeats it
    names = [*READS, *["all"] * len(READS)]  # half of the bytes are checked by a read of all records
    with open_reader(
        URI, config={**UNCACHED, **logs.settings, "store.retries": 0}, plugins=[logs.sim], env=logs.env
    ) as reader:
        log = reader.log("t", 0)
        expected = {name: read(log) for name, read in READS.items()}
        for key, (data, modified_ms) in [item for item in bucket.objects.items() if "/segments/" in item[0]]:
            head_bytes = heads(log, data)
            for position in range(0, len(data), 1 if head_bytes else 2):
                damaged, byte = bytearray(data), head_bytes.get(position)
                damaged[position] ^= 1 << chance.randrange(8)
                bucket.objects[key] = bytes(damaged), modified_ms
                for name in READS if byte is not None else (names[position % len(names)],):
                    try:
                        is_fine = is_right(READS[name](log), expected[name])
                    except CorruptionError as error:
                        is_fine, reports = key in str(error) and "position=" in str(error), reports + 1
                    may_differ = byte in EPOCH_BYTES and name not in WHOLE
                    assert is_fine or may_differ, f"{name} after a flip at {position} of {key}, byte {byte} of a head"
            bucket.objects[key] = data, modified_ms
        assert {name: read(log) for name, read in READS.items()} == expected, "the damage is mended"
    assert reports > SOME


@pytest.mark.parametrize("logs", ["single"], indirect=True)
@pytest.mark.parametrize("read", [READS["time 4"], READS["fetch 4"], READS["all"]], ids=["time", "fetch", "all"])
def test_a_damaged_segment_is_read_once_it_is_repaired(logs: TieredLogs, read: Read) -> None:
    """Bytes that were found to be damaged must not stay in a cache."""
    stored(logs)
    bucket = logs.sim.bucket
    (key,) = [key for key in bucket.objects if "/segments/" in key]
    data, modified_ms = bucket.objects[key]
    with open_reader(URI, config={**logs.settings, "store.retries": 0}, plugins=[logs.sim], env=logs.env) as reader:
        log = reader.log("t", 0)
        bucket.objects[key] = data[:REACHED] + bytes([data[REACHED] ^ 1]) + data[REACHED + 1 :], modified_ms
        with pytest.raises(CorruptionError):
            read(log)
        bucket.objects[key] = data, modified_ms
        mended = read(log)
    with open_reader(URI, config={**logs.settings, "store.retries": 0}, plugins=[logs.sim], env=logs.env) as reader:
        assert mended == read(reader.log("t", 0))
