"""Sums of the progress of several parts."""

from __future__ import annotations

import threading

from stratalog.env.progress import ProgressSum, counted, counters


def test_parts_add_up_and_neither_number_gets_smaller() -> None:
    reported = list[tuple[int, int]]()
    summed = ProgressSum(lambda *numbers: reported.append(numbers))
    first, second = summed.part(10), summed.part()
    first(4, 10)
    second(1, 5)
    first(3, 8)  # smaller numbers: the part was read again
    second(99, 5)  # more than the total
    first(10, 10)
    assert reported == [(0, 10), (4, 10), (5, 15), (9, 15), (15, 15)]


def test_pieces_are_counted() -> None:
    reported = list[tuple[int, int]]()
    count = counted(lambda *numbers: reported.append(numbers), 7)
    count(3)
    count(4)
    assert reported == [(3, 7), (7, 7)]


def test_sizes_are_requested_only_for_progress() -> None:
    def size_of(_item: int) -> int:
        raise AssertionError

    (count,) = counters(None, [1], size_of)
    count(1)


def test_threads_report_one_at_a_time_and_in_order() -> None:
    reported = list[tuple[int, int]]()
    parts = counters(lambda *numbers: reported.append(numbers), range(8), lambda _: 1000)

    def work(number: int) -> None:
        for _ in range(1000):
            parts[number](1)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert reported[-1] == (8000, 8000)
    assert reported == sorted(reported)
