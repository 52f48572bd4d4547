from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from stratalog.env.threads import OwnThread
from stratalog.errors import StoreError
from stratalog.tier.read.prefetch import ObjectRange, Pool, Prefetcher

SIZE = 10


def span(number: int, key: str = "a") -> ObjectRange:
    return ObjectRange(key, number * SIZE, (number + 1) * SIZE)


class Bed:
    """A prefetcher whose loads the test can block, its loaded spans, and readers that advance step by step."""

    def __init__(self, *, limit_bytes: int = 1000, threads: int = 2, spans: int = 100) -> None:
        self.loaded: list[ObjectRange] = []
        self.there: set[ObjectRange] = set()
        self.failing = False
        self.open = threading.Event()
        self.open.set()
        self.spans = spans
        self.lock = threading.Lock()
        self.begun = threading.Semaphore(0)
        self.ahead = Prefetcher(self.load, self.there.__contains__, limit_bytes, threads)

    def load(self, object_range: ObjectRange) -> bytes:
        assert threading.current_thread().name.startswith("stratalog-tier-read")
        self.begun.release()
        self.open.wait()
        with self.lock:
            self.loaded.append(object_range)
        if self.failing:
            raise StoreError("down", object_range.key)
        return b"x" * (object_range.end - object_range.start)

    def wait_for(self, loads: int) -> None:
        """Wait until this number of further loads have begun."""
        for _ in range(loads):
            self.begun.acquire()

    def step(self, number: int, key: str = "a") -> bytes | None:
        """Let a reader advance to the next span, and return the prefetched bytes of the span, or None."""

        def rest() -> Iterator[ObjectRange]:
            return iter([span(later, key) for later in range(number + 1, self.spans)])

        self.ahead.note_read([(key, number)], (key, number + 1), span(number, key), rest)
        return self.ahead.take(span(number, key))


@pytest.fixture
def bed() -> Iterator[Bed]:
    prefetch_bed = Bed()
    yield prefetch_bed
    prefetch_bed.open.set()
    prefetch_bed.ahead.close()


def test_nothing_is_read_ahead_of_single_reads(bed: Bed) -> None:
    for number in (50, 3, 17, 5, 99):
        assert bed.step(number) is None
    assert bed.ahead.held_bytes == 0


def test_a_sequential_reader_fetches_everything_once(bed: Bed) -> None:
    chunks = [bed.step(number) for number in range(bed.spans)]
    bed.ahead.close()
    assert chunks[:2] == [None, None]
    assert all(data is None or data == b"x" * SIZE for data in chunks)
    assert len(bed.loaded) == len(set(bed.loaded))
    used_spans = {span(number) for number, data in enumerate(chunks) if data is not None}
    assert used_spans <= set(bed.loaded)


def test_the_window_doubles_up_to_twice_the_threads(bed: Bed) -> None:
    bed.open.clear()
    bed.step(0)
    assert bed.ahead.held_bytes == 0
    bed.ahead.note_read([("a", 1)], ("a", 2), span(1), lambda: iter([span(later) for later in range(2, 100)]))
    assert bed.ahead.held_bytes == 2 * SIZE
    bed.ahead.note_read([("a", 2)], ("a", 3), span(2), lambda: iter(()))
    assert [bed.ahead.holds(span(number)) for number in range(2, 8)] == [True] * 5 + [False]
    assert bed.ahead.held_bytes == 5 * SIZE


def test_memory_is_bounded_and_released() -> None:
    small = Bed(limit_bytes=3 * SIZE, threads=8)
    try:
        for number in range(small.spans):
            assert small.ahead.held_bytes <= 3 * SIZE
            small.step(number)
        assert small.ahead.held_bytes == 0
    finally:
        small.ahead.close()


def test_a_span_without_a_prefetch_is_read_by_the_reader() -> None:
    bed = Bed(threads=1)
    bed.open.clear()
    bed.step(0)
    bed.ahead.note_read([("a", 1)], ("a", 2), span(1), lambda: iter([span(2), span(3)]))
    bed.wait_for(1)
    assert bed.ahead.take(span(3)) is None  # the only thread is busy with the previous span
    bed.open.set()
    assert bed.ahead.take(span(2)) == b"x" * SIZE
    bed.ahead.close()
    assert bed.loaded == [span(2)]
    assert bed.ahead.held_bytes == 0


def test_cached_spans_are_not_fetched(bed: Bed) -> None:
    bed.there.update(span(number) for number in range(0, 100, 2))
    for number in range(100):
        bed.step(number)
    bed.ahead.close()
    assert not bed.there & set(bed.loaded)


def test_failed_loads_leave_the_read_to_the_reader(bed: Bed) -> None:
    bed.failing = True
    assert [bed.step(number) for number in range(10)] == [None] * 10


def test_a_list_that_cannot_be_read_ends_reading_ahead_and_not_the_reader(bed: Bed) -> None:
    def broken() -> Iterator[ObjectRange]:
        yield span(2)
        raise StoreError("no page", "page")

    bed.step(0)
    bed.ahead.note_read([("a", 1)], ("a", 2), span(1), broken)
    bed.wait_for(1)
    assert bed.ahead.take(span(2)) == b"x" * SIZE


def test_two_readers_of_one_log_share_what_is_fetched(bed: Bed) -> None:
    """Both readers are at the same span. The second one must not replace the first one's stream, nor begin another."""
    for number in range(3):
        for _ in range(2):
            bed.ahead.note_read(
                [("a", number)], ("a", number + 1), span(number), lambda: iter([span(2), span(3), span(4)])
            )
    bed.wait_for(3)
    bed.ahead.close()
    assert sorted(bed.loaded) == [span(2), span(3), span(4)]


def test_chunks_fetched_for_readers_that_left_make_room() -> None:
    bed = Bed(limit_bytes=4 * SIZE, threads=2)
    try:
        for number in range(2):
            bed.step(number, "gone")
        assert bed.ahead.held_bytes > 0
        chunks = [bed.step(number, "b") for number in range(100)]
        chunks += [bed.step(number, "c") for number in range(100)]
        chunks += [bed.step(number, "d") for number in range(100)]
        assert not any(bed.ahead.holds(span(number, "gone")) for number in range(100))
        assert bed.ahead.held_bytes <= 4 * SIZE
    finally:
        bed.ahead.close()


def test_streams_are_forgotten_with_what_was_fetched_for_them(bed: Bed) -> None:
    bed.step(0)
    bed.step(1)
    for number in range(1_025):
        bed.step(number, f"other-{number}")
    assert not any(bed.ahead.holds(span(number)) for number in range(100))


def test_sequential_readers_are_counted_from_their_second_read_until_others_have_read_long(bed: Bed) -> None:
    counts: list[int] = []
    for key in ("a", "b", "c"):
        bed.step(0, key)
        counts.append(bed.ahead.readers)
        bed.step(0, key)
        counts.append(bed.ahead.readers)
    assert counts == [0, 1, 1, 2, 2, 3]
    for number in range(50, 70, 2):
        bed.step(number, "single read")
    assert bed.ahead.readers == 3
    for number in range(1_030):
        bed.step(number, "a")
    assert bed.ahead.readers == 1


def test_readers_at_the_same_span_count_as_one(bed: Bed) -> None:
    for number in range(3):
        bed.step(number)
    for number in range(1, 3):
        bed.ahead.note_read([("a", f"late-{number}"), ("a", number)], ("a", number + 1), span(number), lambda: iter(()))
        assert bed.ahead.readers == 1
    for number in range(3, 1_030):
        bed.step(number)
    assert bed.ahead.readers == 1
    bed.ahead.close()
    assert bed.ahead.readers == 0


def test_dropped_objects_are_not_given_out(bed: Bed) -> None:
    bed.step(0)
    bed.step(1)
    assert bed.ahead.holds(span(2))
    bed.ahead.drop({"a"})
    assert bed.ahead.take(span(2)) is None
    assert bed.ahead.held_bytes == 0


def test_closing_waits_for_what_runs_and_leaves_no_thread() -> None:
    bed = Bed()
    bed.open.clear()
    bed.step(0)
    bed.ahead.note_read([("a", 1)], ("a", 2), span(1), lambda: iter([span(2), span(3), span(4), span(5)]))
    bed.wait_for(2)
    closing = threading.Thread(target=bed.ahead.close)
    closing.start()
    bed.open.set()
    closing.join()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("stratalog-tier-read")]
    assert bed.ahead.held_bytes == 0
    bed.ahead.close()
    bed.step(2)
    bed.step(3)
    assert bed.ahead.held_bytes == 0


def test_without_memory_nothing_is_read_ahead() -> None:
    bed = Bed(limit_bytes=0)
    for number in range(10):
        assert bed.step(number) is None
    assert bed.loaded == []


def test_a_pool_runs_jobs_on_as_many_threads_as_it_may() -> None:
    pool, barrier, thread_names = Pool(3, "test-pool"), threading.Barrier(3), list[str]()

    def meet() -> None:
        barrier.wait()
        thread_names.append(threading.current_thread().name)

    for _ in range(3):
        pool.submit(meet)
    pool_done = threading.Event()
    pool.submit(pool_done.set)
    pool_done.wait()
    pool.close()
    assert len(set(thread_names)) == 3
    pool.submit(lambda: thread_names.append("never"))
    assert len(thread_names) == 3


def test_a_reader_continues_while_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    bed = Bed(threads=1)

    def fail(_: OwnThread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(OwnThread, "start", fail)
        for number in range(3):
            assert bed.step(number) is None
    bed.step(3)
    bed.wait_for(1)  # the thread is started as soon as the system can start it
    bed.ahead.close()


def test_a_closed_pool_starts_no_thread_for_a_job() -> None:
    pool, ran = Pool(1, "test-pool"), threading.Event()
    pool.close()
    pool.submit(ran.set)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("test-pool")]
    assert not ran.is_set()
