"""Many threads that read the same bytes. The compiled kernels release the interpreter lock."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest

import fuzz_campaign
import twins
from stratalog.spi import RecordFormat, ScanStop

THREADS = 6
ROUNDS = 40
LIMIT_BYTES = 1 << 20


@pytest.fixture(params=twins.TWINS)
def forms(request: pytest.FixtureRequest) -> dict[str, RecordFormat]:
    return twins.formats(twins.kernels_of(request.param))


def many_entries(name: str) -> bytes:
    uncompressed, compressed = fuzz_campaign.corpus(name)
    return b"".join(uncompressed + compressed) * 8


@pytest.mark.parametrize("name", ["v0", "v1", "v2"])
def test_threads_that_read_the_same_bytes_read_the_same(forms: dict[str, RecordFormat], name: str) -> None:
    form, data = forms[name], many_entries(name)
    expected = twins.judged(form, data, check_crc=True, limit_bytes=LIMIT_BYTES)
    assert expected[0] is ScanStop.END
    start = threading.Barrier(THREADS)

    def read() -> None:
        start.wait()
        for _ in range(ROUNDS // 8):
            assert twins.judged(form, data, check_crc=True, limit_bytes=LIMIT_BYTES) == expected

    with ThreadPoolExecutor(THREADS) as pool:
        for future in [pool.submit(read) for _ in range(THREADS)]:
            future.result()


@pytest.mark.parametrize("name", ["v0", "v1", "v2"])
def test_bytes_that_change_while_they_are_read_cause_no_crash(forms: dict[str, RecordFormat], name: str) -> None:
    """Another thread changes the bytes: a read returns records inside the bytes, or raises a typed error."""
    form, data = forms[name], bytearray(many_entries(name))
    intact, table, ended = bytes(data), form.scan(data, 0, len(data), check_crc=True), threading.Event()

    def change() -> None:
        chance = Random(name)  # noqa: S311 - where bytes are changed, not when
        while not ended.is_set():
            for _ in range(20):
                data[chance.randrange(len(data))] = chance.randrange(256)
            data[:] = intact

    def read() -> None:
        for _ in range(ROUNDS):
            twins.check_sense(twins.judged(form, data, check_crc=False, limit_bytes=LIMIT_BYTES), len(data))
            try:
                for columns in form.decode(data, table, limit_bytes=LIMIT_BYTES):
                    columns.keys()
            except twins.TYPED:
                pass

    with ThreadPoolExecutor(THREADS) as pool:
        changing = pool.submit(change)
        try:
            for future in [pool.submit(read) for _ in range(THREADS - 2)]:
                future.result()
        finally:
            ended.set()
        changing.result()
