"""Indexes are hints: with any content of the index files, each result equals that with correct indexes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

import golden_data
import stratalog
from golden_damage import DamagedLog, forget_the_stop, read_all, repeatable
from golden_data import Golden
from golden_reading import hashes
from stratalog import LogReader

Unpacked = Callable[[str], Golden]
Damage = Callable[[bytes, bytes, int], bytes]
"""Makes other contents of an index: from its own, those of another segment, and the size of an entry (bytes)."""

WANTED: Final = ("v2-none", "v0-none", "upgraded", "txn")
LOGS = [
    pytest.param((directory, name), id=f"{directory}/{name}")
    for directory, name in golden_data.expected_logs(*golden_data.plain_directories())
    if name.topic in WANTED
]
ENTRY_BYTES: Final = {".index": 8, ".timeindex": 12, ".txnindex": 34, ".snapshot": 46}


def entries(data: bytes, entry_bytes: int) -> list[bytes]:
    return [data[position : position + entry_bytes] for position in range(0, len(data) - entry_bytes + 1, entry_bytes)]


def with_last_number(data: bytes, entry_bytes: int, change: Callable[[int], int]) -> bytes:
    """Change the last 4 bytes of every entry, read as a number: a position or a relative offset."""
    changed = [
        entry[:-4] + (change(int.from_bytes(entry[-4:], "big")) % (1 << 32)).to_bytes(4, "big")
        for entry in entries(data, entry_bytes)
    ]
    return b"".join(changed)


def of_first(data: bytes, entry_bytes: int) -> bytes:
    return data[:entry_bytes] * max(3, len(data) // entry_bytes)


DAMAGES: Final[dict[str, Damage]] = {
    "garbage": lambda data, _, size: repeatable(len(data)).randbytes(max(len(data), 5 * size)),
    "garbage that ends inside an entry": lambda data, _, size: repeatable(7).randbytes(len(data) + 3 * size + 1),
    "cut inside an entry": lambda data, _, size: data[: max(len(data) - 3, 0)] or bytes(size - 3),
    "zeros": lambda data, _, size: bytes(max(len(data), 4 * size)),
    "zeros behind": lambda data, _, size: data + bytes(40 * size),
    "ones": lambda data, _, size: b"\xff" * max(len(data), 4 * size),
    "another segment's": lambda _, other, __: other,
    "entries turned round": lambda data, _, size: b"".join(reversed(entries(data, size))),
    "the first entry again and again": lambda data, _, size: of_first(data, size),
    "only the last entry": lambda data, _, size: data[-size:],
    "last field one more": lambda data, _, size: with_last_number(data, size, lambda number: number + 1),
    "last field one less": lambda data, _, size: with_last_number(data, size, lambda number: number - 1),
    "last field doubled": lambda data, _, size: with_last_number(data, size, lambda number: number * 2),
    "last field halved": lambda data, _, size: with_last_number(data, size, lambda number: number // 2),
    "last field beyond the end": lambda data, _, size: with_last_number(data, size, lambda number: number + (1 << 24)),
    "last field negative": lambda data, _, size: with_last_number(data, size, lambda number: -number),
    "empty": lambda _, __, ___: b"",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damaged")


@pytest.fixture(scope="module", params=LOGS)
def whole(request: pytest.FixtureRequest, golden: Unpacked, folder: Path) -> DamagedLog:
    """Return a log whose indexes a test may change, if it restores them."""
    directory, name = request.param
    return DamagedLog(golden(directory), name, folder / f"{directory}-{name}")


def answers(log: LogReader) -> list[object]:
    """Return all results that use an index: both isolations, ranges, and offsets for timestamps."""
    reads = [read_all(log), read_all(log, "read_committed")]
    offsets, records = log.offsets(), reads[0].records
    step = max(1, offsets.log_end // 12)
    starts = range(max(offsets.log_start, 1), offsets.log_end, step)
    stamps = sorted({record.timestamp_ms + delta for record in records[::step] for delta in (-1, 0, 1)})
    return [
        (offsets.log_start, offsets.last_stable, offsets.high_watermark, offsets.log_end),
        reads,
        [list(log.records(start, start + 3)) for start in starts],
        [log.fetch(start, 1).read() for start in starts],
        [log.offset_for_timestamp(stamp) for stamp in stamps],
    ]


def change(folder: Path, suffix: str, damage: Damage) -> dict[Path, bytes]:
    """Damage all files with this suffix, and return their original contents."""
    originals = {file: file.read_bytes() for file in sorted(folder.glob(f"*{suffix}"))}
    longest = sorted(originals.values(), key=len)
    for file, data in originals.items():
        other_data = next((candidate for candidate in reversed(longest) if candidate != data), data)
        file.write_bytes(damage(data, other_data, ENTRY_BYTES[suffix]))
    return originals


def restore(before: dict[Path, bytes]) -> None:
    for file, data in before.items():
        file.write_bytes(data)


BELIEVED: Final = {  # not detectable: no aborted transactions, fewer of them, an earlier state of producers
    (".txnindex", "empty"),
    (".txnindex", "only the last entry"),
    (".snapshot", "another segment's"),
}
CASES = [
    pytest.param(suffix, damage, id=f"{suffix[1:]}: {name}")
    for suffix in ENTRY_BYTES
    for name, damage in DAMAGES.items()
    if (suffix, name) not in BELIEVED
]
every_damage = pytest.mark.parametrize(("suffix", "damage"), CASES)


@pytest.fixture(scope="module")
def correct_answers(whole: DamagedLog) -> list[object]:
    """Return the results with the indexes that Kafka wrote."""
    with stratalog.open_reader(whole.folder) as reader:
        return answers(reader.log(*whole.name))


@every_damage
@pytest.mark.long
def test_a_reader_answers_as_with_correct_indexes(
    whole: DamagedLog, correct_answers: list[object], suffix: str, damage: Damage
) -> None:
    before = change(whole.log_folder, suffix, damage)
    try:
        unread = hashes(whole.folder)
        with stratalog.open_reader(whole.folder) as reader:
            assert answers(reader.log(*whole.name)) == correct_answers
        assert hashes(whole.folder) == unread
    finally:
        restore(before)


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".snapshot"])
def test_a_reader_does_without_the_files(whole: DamagedLog, correct_answers: list[object], suffix: str) -> None:
    before = {file: file.read_bytes() for file in whole.log_folder.glob(f"*{suffix}")}
    for file in before:
        file.unlink()
    try:
        with stratalog.open_reader(whole.folder) as reader:
            assert answers(reader.log(*whole.name)) == correct_answers
    finally:
        restore(before)


@pytest.mark.parametrize("crashed", [False, True], ids=["stopped", "crashed"])
@pytest.mark.parametrize("name", ["garbage", "another segment's", "last field beyond the end", "zeros behind"])
@pytest.mark.long
def test_an_engine_answers_as_with_correct_indexes(
    whole: DamagedLog, correct_answers: list[object], tmp_path: Path, name: str, *, crashed: bool
) -> None:
    copy = shutil.copytree(whole.folder, tmp_path / "logs")
    for suffix in ENTRY_BYTES:
        if (suffix, name) not in BELIEVED:
            change(copy / str(whole.name), suffix, DAMAGES[name])
    if crashed:
        forget_the_stop(copy)
    with stratalog.open_engine(copy) as engine:
        assert answers(engine.log(*whole.name)) == correct_answers
    with stratalog.open_reader(copy) as reader:
        assert answers(reader.log(*whole.name)) == correct_answers
