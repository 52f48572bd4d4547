"""Going through the blocks of a stream twice: to see what they may hold, and to decompress them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final, Generic, TypeVar

_FEW: Final = 1024

Item = TypeVar("Item")


class _Walk(Generic[Item]):
    """Walks anew each time."""

    def __init__(self, walk: Callable[[], Iterator[Item]]) -> None:
        self._walk = walk

    def __iter__(self) -> Iterator[Item]:
        return self._walk()


def repeatable(walk: Callable[[], Iterator[Item]]) -> Iterable[Item]:
    """What ``walk`` gives, to go through more than once.

    A few are kept. Many are walked anew each time: a list of tiny blocks would be many times as large as they are.
    """
    kept = list(islice(walk(), _FEW))
    return kept if len(kept) < _FEW else _Walk(walk)
