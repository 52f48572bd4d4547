from __future__ import annotations

import linecache
import sys
import threading
from types import FrameType
from typing import Any

import pytest

from stratalog.env import cache as cache_module
from stratalog.env.cache import Cache
from stratalog.errors import StoreTimeoutError


def loaded(cache: Cache[bytes], key: str, data: bytes) -> bytes:
    return cache.get_or_load(key, lambda: data)


def test_the_least_recently_used_entry_is_evicted_first_and_the_bound_holds() -> None:
    cache = Cache[bytes](10)
    loaded(cache, "a", b"aaaa")
    loaded(cache, "b", b"bbbb")
    assert loaded(cache, "a", b"other") == b"aaaa"
    loaded(cache, "c", b"cccc")
    assert cache.metrics().size_bytes == 8
    assert loaded(cache, "a", b"other") == b"aaaa"
    assert loaded(cache, "b", b"again") == b"again"


def test_an_item_above_the_limit_is_not_kept() -> None:
    cache = Cache[bytes](3)
    assert loaded(cache, "a", b"aaaa") == b"aaaa"
    assert loaded(cache, "a", b"new!") == b"new!"
    assert cache.metrics().items == 0


def test_empty_items_are_kept_too() -> None:
    cache = Cache[bytes](3)
    loaded(cache, "a", b"")
    assert loaded(cache, "a", b"x") == b""
    metrics = cache.metrics()
    assert (metrics.hits, metrics.misses, metrics.items) == (1, 1, 1)


def test_a_failed_load_is_not_remembered() -> None:
    cache = Cache[bytes](10)

    def fail() -> bytes:
        raise StoreTimeoutError("late", "a")

    with pytest.raises(StoreTimeoutError):
        cache.get_or_load("a", fail)
    assert loaded(cache, "a", b"fine") == b"fine"


def test_dropped_items_are_loaded_again() -> None:
    cache = Cache[bytes](10)
    loaded(cache, "a", b"aa")
    loaded(cache, "b", b"bb")
    cache.drop(lambda key: key == "a")
    assert (loaded(cache, "a", b"AA"), loaded(cache, "b", b"BB")) == (b"AA", b"bb")
    assert cache.metrics().size_bytes == 4


def test_a_load_that_was_under_way_when_its_key_was_dropped_is_not_kept() -> None:
    cache = Cache[bytes](10)

    def load() -> bytes:
        cache.drop(lambda _: True)
        return b"old"

    assert cache.get_or_load("a", load) == b"old"
    assert loaded(cache, "a", b"new") == b"new"


def test_the_interrupt_of_one_caller_does_not_end_the_others() -> None:
    cache = Cache[bytes](10)
    entered, results = threading.Event(), list[bytes]()

    def interrupted() -> bytes:
        entered.set()
        while cache.metrics().misses < 2:  # until the other caller waits
            pass
        raise KeyboardInterrupt

    def read() -> None:
        assert entered.wait(10)
        results.append(cache.get_or_load("a", lambda: b"data"))

    other_thread = threading.Thread(target=read)
    other_thread.start()
    with pytest.raises(KeyboardInterrupt):
        cache.get_or_load("a", interrupted)
    other_thread.join()
    assert results == [b"data"]


def read_all(cache: Cache[bytes], results: list[bytes]) -> None:
    results += [loaded(cache, "a", b"data"), loaded(cache, "b", b"12345678"), loaded(cache, "a", b"data")]


def test_after_an_interrupt_at_any_line_all_items_can_be_read() -> None:
    interrupts = 0
    for line_number in range(1, 100):
        cache, lines = Cache[bytes](10), 0
        cache.get_or_load("b", lambda: b"12345678")  # the other item evicts it

        def trace(frame: FrameType, event: str, _argument: object) -> Any:
            nonlocal lines, interrupts
            if frame.f_code.co_filename != cache_module.__file__:
                return None
            # Python itself never interrupts between the last line of a ``with`` block and the release of its lock
            if event == "line" and not linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith(
                "with"
            ):
                lines += 1
                if lines == line_number:  # noqa: B023 - the function is used in this iteration only
                    interrupts += 1
                    raise KeyboardInterrupt
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            cache.get_or_load("a", lambda: b"data")
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        results: list[bytes] = []
        reader = threading.Thread(target=read_all, args=(cache, results), daemon=True)
        reader.start()
        reader.join(10)
        assert results == [b"data", b"12345678", b"data"], line_number
    assert 10 < interrupts < 99  # all lines were interrupted


def test_one_thread_loads_and_the_others_get_what_it_loaded() -> None:
    """If several threads need the same index, only one thread builds it (KAFKA-7283, KAFKA-9156)."""
    cache = Cache[bytes](10)
    entered, go = threading.Event(), threading.Event()
    loads: list[str] = []
    results: list[bytes] = []

    def load() -> bytes:
        loads.append("load")
        entered.set()
        assert go.wait(10)
        return b"data"

    def read() -> None:
        results.append(cache.get_or_load("a", load))

    threads = [threading.Thread(target=read) for _ in range(4)]
    threads[0].start()
    assert entered.wait(10)
    for thread in threads[1:]:
        thread.start()
    assert loaded(cache, "b", b"bb") == b"bb"  # another key does not wait
    go.set()
    for thread in threads:
        thread.join()
    assert (loads, results) == (["load"], [b"data"] * 4)
