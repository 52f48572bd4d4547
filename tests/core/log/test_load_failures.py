from __future__ import annotations

import os

import pytest

from log_bed import LogBed, offsets_in
from stratalog.env import PosixVfs
from stratalog.errors import CorruptBatchError, StorageError
from stratalog.model.records import Record

COUNT, EACH = 18, 3


# --- interrupted replacements ------------------------------------------------------------------------------------


def merged(bed: LogBed, state: str) -> dict[str, bytes]:
    """Return the file of a compacted segment that replaces the first two segments and has every other record.

    ``state`` is the suffix of its name.
    """
    batches = [bed.batch(6 * n, [Record(timestamp_ms=1, key=b"k%d" % (6 * n), value=b"new")]) for n in range(2)]
    return {bed.path(0).name + state: b"".join(batches)}


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    ("state", "expected"), [(".swap", [0, 6, *range(12, COUNT)]), (".cleaned", list(range(COUNT)))]
)
def test_an_interrupted_replacement_is_finished_or_undone(
    small: LogBed, state: str, expected: list[int], *, clean: bool
) -> None:
    contents = {**small.contents(), **merged(small, state)}
    small.write(contents)
    reader = small.open_reader(clean=clean)
    assert offsets_in(reader) == expected
    assert small.contents() == contents
    reader.close()
    log = small.open(clean=clean)
    assert offsets_in(log) == expected
    small.close()
    assert not [name for name in small.names() if name.endswith(state)]
    assert offsets_in(small.open()) == expected


@pytest.mark.parametrize("clean", [True, False])
def test_a_torn_replacement_takes_the_place_of_what_its_whole_batches_cover(small: LogBed, *, clean: bool) -> None:
    """The second batch of the replacement is incomplete, so only offset 0 is certain.

    Segments that begin after that offset stay. After a crash, recovery truncates the log after it. After a clean
    shutdown, nothing is truncated, and a reader gets an error with the place of the damage.
    """
    ((name, data),) = merged(small, ".swap").items()
    contents = {**small.contents(), name: data[:-3]}
    small.write(contents)
    reader = small.open_reader(clean=clean)
    if clean:
        with pytest.raises(CorruptBatchError, match=r"log\.swap"):
            offsets_in(reader)
    else:
        assert offsets_in(reader) == [0]
    assert small.contents() == contents
    reader.close()
    log = small.open(clean=clean)
    assert not [name for name in small.names() if name.endswith(".swap")]
    if clean:
        assert [segment.base_offset for segment in log.view().segments] == [0, 6, 12]
        assert [record.offset for record in log.records(6)] == list(range(6, COUNT))
        return
    assert offsets_in(log) == [0]
    log.append([Record(timestamp_ms=1, key=b"k1", value=b"more")])
    small.close()
    assert offsets_in(small.open()) == [0, 1]


# --- what goes wrong while loading -------------------------------------------------------------------------------


class Failing(PosixVfs):
    """File system whose n-th change of the disk fails."""

    def __init__(self, allowed: int) -> None:
        self.left = allowed

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise OSError(5, os.strerror(5))

    def write(self, descriptor: int, position: int, data: bytes | bytearray | memoryview) -> int:
        self._count()
        return super().write(descriptor, position, data)

    def truncate(self, descriptor: int, size_bytes: int) -> None:
        self._count()
        super().truncate(descriptor, size_bytes)

    def sync(self, descriptor: int) -> None:
        self._count()
        super().sync(descriptor)

    def rename(self, old: str, new: str) -> None:
        self._count()
        super().rename(old, new)

    def remove(self, path: str) -> None:
        self._count()
        super().remove(path)


def test_a_load_that_fails_anywhere_can_be_repeated(small: LogBed) -> None:
    """Recovery fails at each of its changes of the disk in turn, and succeeds at the next attempt."""
    contents = small.contents()
    contents[small.path(12).name] = contents[small.path(12).name][:-5]
    contents[small.path(3).name + ".deleted"] = b"left"
    failures = 0
    for allowed in range(200):
        small.close()
        small.write(contents)
        disk = small.files_port = Failing(allowed)
        is_complete = True
        try:
            small.open(clean=False)
        except StorageError:
            is_complete = False
            failures += 1
            assert small.host.handles.open_count == 0
        disk.left = 1 << 30
        assert offsets_in(small.open(clean=False)) == list(range(COUNT - EACH))
        if is_complete:
            break
    assert failures > 10


@pytest.mark.parametrize(
    ("left", "expected"),
    [
        (["0.log.cleaned", "6.log.swap"], list(range(COUNT))),
        (["0.log.swap"], [0, 6, *range(12, COUNT)]),
        (["0.log.swap", "0.index.swap", "0.txnindex.swap"], [0, 6, *range(12, COUNT)]),
    ],
    ids=["undone", "finished", "finished with indexes"],
)
def test_finishing_a_replacement_may_fail_anywhere(small: LogBed, left: list[str], expected: list[int]) -> None:
    contents, (data,) = small.contents(), merged(small, "").values()
    for name in left:
        base, suffix = name.split(".", 1)
        contents[f"{int(base):020d}.{suffix}"] = data if suffix.startswith("log") else b""
    for allowed in range(100):
        small.close()
        small.write(contents)
        disk = small.files_port = Failing(allowed)
        failed = False
        try:
            small.load().segments[-1].close()
        except StorageError:
            failed = True
        disk.left = 1 << 30
        assert offsets_in(small.open()) == expected
        if not failed:
            break
    assert allowed >= len(left)
