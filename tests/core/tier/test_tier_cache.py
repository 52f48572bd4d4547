from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from stratalog.env import Env, PosixVfs
from stratalog.env.clock import ManualClock
from stratalog.testing.faults import FaultyVfs, failing
from stratalog.tier.read.disk_cache import CacheFolder, DiskCache

DATA = bytes(range(256)) * 4


def cache_of(folder: Path, limit_bytes: int = 1 << 20, env: Env | None = None) -> DiskCache:
    return DiskCache(str(folder / "cache"), limit_bytes, env or Env())


def files_in(folder: Path) -> list[Path]:
    return sorted((folder / "cache").iterdir())


def test_cached_items_are_there_after_a_restart(tmp_path: Path) -> None:
    first = cache_of(tmp_path)
    first.put("a", "0-10", DATA)
    first.put("a", "10-20", b"")
    first.put("b", "0-10", DATA[::-1])
    for cache in (first, cache_of(tmp_path)):
        assert (cache.get("a", "0-10"), cache.get("a", "10-20"), cache.get("b", "0-10")) == (DATA, b"", DATA[::-1])
        assert cache.get("b", "10-20") is None
        metrics = cache.metrics()
        assert (metrics.items, metrics.hits, metrics.misses) == (3, 3, 1)
        assert metrics.size_bytes == sum(path.stat().st_size for path in files_in(tmp_path))


def test_a_group_is_dropped_as_a_whole(tmp_path: Path) -> None:
    cache = cache_of(tmp_path)
    for group, item in (("a", "1"), ("a", "2"), ("b", "1")):
        cache.put(group, item, DATA)
    cache.drop("a")
    assert (cache.get("a", "1"), cache.get("a", "2"), cache.get("b", "1")) == (None, None, DATA)
    assert len(files_in(tmp_path)) == 1


def test_a_refused_group_is_not_cached_again_even_by_a_put_in_progress(tmp_path: Path) -> None:
    files = FaultyVfs()
    cache = cache_of(tmp_path, env=Env(files=files))
    cache.put("a", "1", DATA)

    def refuse(operation: str, *_: object) -> None:
        if operation == "write":
            cache.drop("a", refuse=True)

    files.rule = refuse
    cache.put("a", "2", DATA)
    files.rule = None
    cache.put("a", "3", DATA)
    cache.put("b", "1", DATA)
    assert [cache.get("a", item) for item in "123"] == [None, None, None]
    assert cache.get("b", "1") == DATA
    assert len(files_in(tmp_path)) == 1


def test_every_flipped_bit_and_every_cut_is_a_miss_and_then_mended(tmp_path: Path) -> None:
    """A damaged file is replaced, and its bytes are never returned (KAFKA-15511)."""
    cache = cache_of(tmp_path)
    data = b"some bytes"
    cache.put("group", "item", data)
    (path,) = files_in(tmp_path)
    intact = path.read_bytes()
    damaged = [intact[:size] for size in range(len(intact))] + [intact + b"x"]
    damaged += [
        intact[:position] + bytes([intact[position] ^ 1 << bit]) + intact[position + 1 :]
        for position in range(len(intact))
        for bit in range(8)
    ]
    for contents in damaged:
        path.write_bytes(contents)
        assert cache.get("group", "item") is None
        assert not files_in(tmp_path)
        cache.put("group", "item", data)
        assert cache.get("group", "item") == data


def test_a_file_under_another_items_name_is_not_believed(tmp_path: Path) -> None:
    cache = cache_of(tmp_path)
    cache.put("group", "first", b"one")
    (first_path,) = files_in(tmp_path)
    cache.put("group", "other", b"two")
    (other_path,) = set(files_in(tmp_path)) - {first_path}
    first_path.write_bytes(other_path.read_bytes())
    assert cache.get("group", "first") is None
    assert cache.get("group", "other") == b"two"


def test_a_file_that_another_process_deleted_is_a_miss(tmp_path: Path) -> None:
    cache = cache_of(tmp_path)
    cache.put("group", "item", DATA)
    files_in(tmp_path)[0].unlink()
    assert cache.get("group", "item") is None
    assert cache.metrics().size_bytes == 0
    cache.put("group", "item", DATA)
    assert cache.get("group", "item") == DATA


def test_leftovers_of_a_crash_are_removed(tmp_path: Path) -> None:
    cache_of(tmp_path).put("group", "item", DATA)
    (tmp_path / "cache" / "half-1.tmp").write_bytes(b"half")
    assert cache_of(tmp_path).get("group", "item") == DATA
    assert len(files_in(tmp_path)) == 1


def test_it_stays_inside_its_bound_and_a_smaller_one_holds_after_a_restart(tmp_path: Path) -> None:
    cache = cache_of(tmp_path, 10 * len(DATA))
    for number in range(100):
        cache.put("group", str(number), DATA)
        assert sum(path.stat().st_size for path in files_in(tmp_path)) <= 10 * len(DATA)
    assert cache.get("group", "99") == DATA
    cache_of(tmp_path, 3 * len(DATA))
    assert 0 < sum(path.stat().st_size for path in files_in(tmp_path)) <= 3 * len(DATA)
    cache.put("group", "too large", DATA * 11)
    assert cache.get("group", "too large") is None


class FullDisk(PosixVfs):
    """File system that stores only half of the bytes of each write."""

    def __init__(self) -> None:
        self.is_full = True

    def write(self, descriptor: int, position: int, data: bytes | bytearray | memoryview) -> int:
        if not self.is_full:
            return super().write(descriptor, position, data)
        return super().write(descriptor, position, memoryview(data)[: len(data) // 2])


def test_a_full_disk_causes_only_cache_misses(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files, clock = FullDisk(), ManualClock()
    cache = cache_of(tmp_path, env=Env(files=files, clock=clock))
    cache.put("group", "item", DATA)
    assert "no space left" in caplog.text
    assert not files_in(tmp_path)
    files.is_full = False
    cache.put("group", "item", DATA)
    assert cache.get("group", "item") is None
    clock.advance_ms(60_000)
    cache.put("group", "item", DATA)
    assert cache.get("group", "item") == DATA


def test_readers_and_evictions_in_many_threads_see_whole_items_or_none(tmp_path: Path) -> None:
    """The removal of an item must not delete the file of a later item with the same name (KAFKA-15481)."""
    cache = cache_of(tmp_path, 6 * len(DATA))
    wrong_items: list[object] = []

    def work(start: int) -> None:
        for number in range(start, start + 400):
            item = str(number * 7 % 11)
            cached_data = cache.get("group", item)
            if cached_data not in (None, DATA + item.encode()):
                wrong_items.append(cached_data)
            cache.put("group", item, DATA + item.encode())
            if number % 50 == 0:
                cache.drop("group")

    threads = [threading.Thread(target=work, args=(start,)) for start in (0, 3, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong_items
    assert cache.metrics().size_bytes == sum(path.stat().st_size for path in files_in(tmp_path)) > 0
    assert cache.metrics().items == len(files_in(tmp_path))


def test_a_folder_belongs_to_one_process_at_a_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = str(tmp_path / "deep" / "cache")
    first = CacheFolder.open(folder, 1 << 20, 1 << 20, Env())
    assert first is not None
    assert CacheFolder.open(folder, 1 << 20, 1 << 20, Env()) is None
    assert "another process" in caplog.text
    first.chunks.put("a", "b", DATA)
    first.close()
    first.close()
    second = CacheFolder.open(folder, 1 << 20, 1 << 20, Env())
    assert second is not None
    assert second.chunks.get("a", "b") == DATA
    assert second.indexes.get("a", "b") is None
    second.close()


def test_a_folder_that_cannot_be_used_is_reported_and_done_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert CacheFolder.open(str(tmp_path / "file"), 1, 1, Env()) is None
    assert "tier.cache.dir" in caplog.text
    assert CacheFolder.open(None, 1, 1, Env()) is None


HOUR_NS = 3_600_000_000_000


def part_of(cache: DiskCache, start: int, size_bytes: int) -> bytes | None:
    room = memoryview(bytearray(size_bytes))
    return bytes(room) if cache.read_part("group", "item", start, room) else None


def test_parts_of_a_file_are_read_once_it_was_found_sound(tmp_path: Path) -> None:
    cache_of(tmp_path).put("group", "item", DATA)
    cache = cache_of(tmp_path)
    assert part_of(cache, 0, 10) is None
    assert not cache.is_cached("group", "item")
    assert cache.get("group", "item") == DATA
    for start, size_bytes in ((0, len(DATA)), (5, 10), (len(DATA) - 1, 1)):
        assert part_of(cache, start, size_bytes) == DATA[start : start + size_bytes]
    assert part_of(cache, len(DATA) - 5, 10) is None
    assert cache.metrics().hits == 5


def test_a_file_is_checked_again_after_an_hour(tmp_path: Path) -> None:
    clock = ManualClock()
    cache = cache_of(tmp_path, env=Env(clock=clock))
    cache.put("group", "item", DATA)
    assert part_of(cache, 0, 10) is None  # the item was written, but never read
    cache.get("group", "item")
    clock.advance_ms(HOUR_NS // 1_000_000 - 1)
    assert part_of(cache, 0, 10) == DATA[:10]
    clock.advance_ms(1)
    assert part_of(cache, 0, 10) is None
    cache.get("group", "item")
    assert part_of(cache, 0, 10) == DATA[:10]


@pytest.mark.parametrize("change", ["written to", "another one", "cut", "deleted", "dropped"])
def test_a_file_that_was_changed_since_is_not_read_in_parts(tmp_path: Path, change: str) -> None:
    cache = cache_of(tmp_path)
    cache.put("group", "item", DATA)
    cache.get("group", "item")
    (path,) = files_in(tmp_path)
    contents = path.read_bytes()
    if change == "dropped":
        cache.drop("group")
    elif change == "deleted":
        path.unlink()
    elif change == "another one":
        other_path = tmp_path / "other"
        other_path.write_bytes(contents[:-1] + b"?")
        other_path.rename(path)
    else:
        path.write_bytes(contents[:-1] + (b"?" if change == "written to" else b""))
    assert part_of(cache, 0, 10) is None
    assert cache.get("group", "item") is None


class CountedVfs(PosixVfs):
    """File system that records the open descriptors."""

    def __init__(self) -> None:
        self.opened = 0
        self.now = set[int]()

    def open(self, path: str, *, write: bool = False, create: bool = False) -> int:
        descriptor = super().open(path, write=write, create=create)
        self.opened += 1
        self.now.add(descriptor)
        return descriptor

    def close(self, descriptor: int) -> None:
        self.now.discard(descriptor)
        super().close(descriptor)


def test_files_that_parts_are_read_of_stay_open_but_not_many(tmp_path: Path) -> None:
    files = CountedVfs()
    cache = cache_of(tmp_path, env=Env(files=files))
    for number in range(100):
        cache.put("group", f"{number}", DATA + b"%02d" % number)
        cache.get("group", f"{number}")
    before, room = files.opened, bytearray(10)
    for number in range(100):
        for _ in range(5):
            assert cache.read_part("group", f"{number}", len(DATA) - 8, memoryview(room))
            assert room == DATA[-8:] + b"%02d" % number
    assert files.opened == before + 100
    assert 0 < len(files.now) < 50
    cache.drop("group")
    assert not files.now, "what is deleted gives its space back"


def test_closing_closes_files_and_parts_are_not_read_any_more(tmp_path: Path) -> None:
    files = CountedVfs()
    cache = cache_of(tmp_path, env=Env(files=files))
    cache.put("group", "item", DATA)
    cache.get("group", "item")
    assert part_of(cache, 0, 10) == DATA[:10]
    for _ in range(2):
        cache.close()
        assert not files.now
        assert part_of(cache, 0, 10) is None
        assert not files.now


def test_a_file_that_is_another_one_now_is_read_once_that_was_found_sound(tmp_path: Path) -> None:
    """The new file is checked, although the old file of the same name is still open."""
    cache = cache_of(tmp_path)
    cache.put("group", "item", DATA)
    cache.get("group", "item")
    assert part_of(cache, 0, 10) == DATA[:10]
    (path,) = files_in(tmp_path)
    contents = path.read_bytes()
    path.unlink()
    path.write_bytes(contents)
    assert cache.get("group", "item") == DATA
    assert part_of(cache, 0, 10) is None, "the file that is open is the one before"
    assert part_of(cache, 0, 10) == DATA[:10]


@pytest.mark.parametrize("is_cached", [True, False])
def test_an_item_is_cached_if_it_was_found_sound_and_its_end_is_in_memory(tmp_path: Path, *, is_cached: bool) -> None:
    class Looked(PosixVfs):
        def is_cached(self, descriptor: int, position: int) -> bool:
            super().is_cached(descriptor, position)
            return is_cached and position == self.size_bytes(descriptor) - 1

    cache = cache_of(tmp_path, env=Env(files=Looked()))
    cache.put("group", "item", DATA)
    assert not cache.is_cached("group", "item")
    cache.get("group", "item")
    assert cache.is_cached("group", "item") is is_cached
    files_in(tmp_path)[0].unlink()
    assert not cache.is_cached("group", "item")


def test_an_item_that_could_not_be_opened_for_lack_of_descriptors_stays(tmp_path: Path) -> None:
    files = FaultyVfs()
    cache = cache_of(tmp_path, env=Env(files=files))
    cache.put("a", "1", DATA)
    files.rule = failing("open", errno.EMFILE)
    assert cache.get("a", "1") is None
    assert cache.get("a", "1") == DATA


@pytest.mark.parametrize("kind", ["folder", "FIFO"])
def test_a_directory_with_the_name_of_a_cached_item_hides_only_that_item(tmp_path: Path, kind: str) -> None:
    cache = cache_of(tmp_path)
    cache.put("a", "1", DATA)
    (path,) = files_in(tmp_path)
    path.unlink()
    if kind == "folder":
        path.mkdir()
    else:
        os.mkfifo(path)
    assert cache.get("a", "1") is None
    cache.put("a", "1", DATA)
    cache.put("a", "2", DATA)
    assert cache.get("a", "2") == DATA
    assert cache.get("a", "1") == (None if kind == "folder" else DATA)
