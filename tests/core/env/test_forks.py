"""Objects that a process opened are closed in its forked children before any other code of stratalog runs there."""

import gc
import sys
import threading
import weakref
from typing import Self

import pytest

from forked import in_child, is_refusal
from stratalog.env.forks import ends_with_fork

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="no fork"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),  # Python 3.12 warns where there are threads
]


class Held:
    """An object with a lock, which is closed in a forked child."""

    def __init__(self) -> None:
        self.lock, self.written = threading.Lock(), 0
        ends_with_fork(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def write(self) -> int:
        with self.lock:
            self.written += 1
        return self.written

    def close(self) -> None:
        self.write()


class Slotted:
    __slots__ = ("__weakref__", "number")

    def __init__(self) -> None:
        self.number = 1
        ends_with_fork(self)


def test_every_use_of_an_inherited_object_is_refused_in_the_child_even_if_its_lock_was_held() -> None:
    inherited = Held()
    bound, function = inherited.write, Held.write
    with inherited.lock:
        outcomes = in_child(
            lambda: inherited.write(),  # noqa: PLW0108 - the attribute is looked up in the child
            lambda: inherited.written,
            bound,
            lambda: function(inherited),
            lambda: inherited.__enter__(),  # noqa: PLW0108 - the same
        )
    assert len(outcomes) == 5
    assert all(map(is_refusal, outcomes)), outcomes
    assert inherited.write() == 1, "the parent's file stays open, and nothing was written in the child"


def test_closing_an_inherited_object_does_nothing_in_the_child() -> None:
    inherited = Held()
    with inherited.lock:
        outcomes = in_child(lambda: inherited.close(), lambda: inherited.__exit__(None, None, None))  # noqa: PLW0108 - as above
    assert outcomes == ["", ""]


def test_an_inherited_object_keeps_its_type_and_has_a_text() -> None:
    inherited = Held()

    def look() -> None:
        assert isinstance(inherited, Held)
        assert repr(inherited) == "<Held, opened before a fork>"

    assert in_child(look) == [""]


def test_an_object_with_slots_is_refused_too() -> None:
    slotted = Slotted()
    (outcome,) = in_child(lambda: slotted.number)
    assert is_refusal(outcome)
    assert slotted.number == 1


def test_an_object_that_the_child_opens_works_there_and_ends_with_forks_of_the_child() -> None:
    def open_in_the_child() -> None:
        childs_object = Held()
        assert childs_object.write() == 1
        (outcome,) = in_child(childs_object.write)
        assert is_refusal(outcome)
        assert childs_object.write() == 2

    assert in_child(open_in_the_child) == [""]


def test_no_object_is_kept_for_a_fork() -> None:
    references = [weakref.ref(Held()) for _ in range(100)]
    gc.collect()
    assert [ref() for ref in references] == [None] * 100
