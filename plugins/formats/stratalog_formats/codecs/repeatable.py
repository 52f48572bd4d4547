"""Iterable over the blocks of a stream, for two passes: the first pass computes sizes, the second decompresses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final, Generic, TypeVar

_FEW: Final = 1024

Item = TypeVar("Item")


class _Walk(Generic[Item]):
    """Iterable that calls ``walk`` for each iteration."""

    def __init__(self, walk: Callable[[], Iterator[Item]]) -> None:
        self._walk = walk

    def __iter__(self) -> Iterator[Item]:
        return self._walk()


def repeatable(walk: Callable[[], Iterator[Item]]) -> Iterable[Item]:
    """Return the items of ``walk`` as an iterable that can be used more than once.

    Fewer than 1,024 items are kept in a list. For more items, each iteration calls ``walk``, because a list of tiny
    blocks would need much more memory than the blocks.
    """
    first_items = list(islice(walk(), _FEW))
    return first_items if len(first_items) < _FEW else _Walk(walk)
