"""Tables of the latest offset of each key, by the key's hash. They need memory in proportion to the number of keys.

The compiled extension ``newest_c`` uses a hash table. Without the extension, rows are sorted.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

import numpy as np

from stratalog.spi import extension

EXTENSIONS: Final = ("stratalog_spark.keys.newest_c",)
_twin: Final[ModuleType | None] = extension(EXTENSIONS[0])
_FIRST_SLOTS: Final = 1 << 12
_ROWS: Final = 1 << 16  # rows per call or sort


@dataclass(slots=True)
class Newest:
    """Offsets of records with the hashes of their keys, as numpy arrays of equal length.

    ``hashes`` has the shape (n, 2) and the type uint64. Equal rows mean equal keys. A row of zeros is a record without
    a key. ``offsets`` has the type int64.
    """

    hashes: Any
    offsets: Any


class HashedKeys:
    """Map from keys to their latest offsets. Rows may be added in any order. Used by one thread.

    The table has open addressing and 24 bytes per slot. When two thirds of the slots are used, its size doubles.
    """

    def __init__(self) -> None:
        self._slots: Any = np.zeros((_FIRST_SLOTS, 3), np.uint64)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, hashes: Any, offsets: Any) -> None:
        """Store each row's offset for its key if it is greater than the stored offset. Rows of zeros are ignored."""
        assert _twin is not None  # ``key_table`` uses this class only with the twin
        for start in range(0, len(offsets), _ROWS):
            part = slice(start, start + _ROWS)
            self._make_room(len(offsets[part]))
            self._count += _twin.put(self._slots, hashes[part], offsets[part], self._count)

    def rows(self) -> Newest:
        """Return one row for each key, with its greatest offset."""
        used_slots = self._slots[(self._slots[:, 0] | self._slots[:, 1]) != 0]
        return Newest(np.ascontiguousarray(used_slots[:, :2]), used_slots[:, 2].astype(np.int64))

    def _make_room(self, count: int) -> None:
        size = len(self._slots)
        while 2 * size < 3 * (self._count + count):
            size *= 2
        if size > len(self._slots):
            old_rows = self.rows()
            self._slots = np.zeros((size, 3), np.uint64)
            if self._count:
                assert _twin is not None  # as above
                _twin.put(self._slots, old_rows.hashes, old_rows.offsets, 0)


class SortedKeys:
    """``HashedKeys`` in pure Python. It collects rows, and regularly sorts them to keep only the latest row of each key.

    The length may exceed the number of keys by up to 65,535, because the latest rows are not merged yet.
    """

    def __init__(self) -> None:
        self._parts: list[Newest] = []
        self._count = self._unmerged = 0

    def __len__(self) -> int:
        return self._count

    def add(self, hashes: Any, offsets: Any) -> None:
        """Collect rows. After 65,536 new rows, keep only the latest row of each key. Rows of zeros are ignored."""
        has_key = (hashes[:, 0] | hashes[:, 1]) != 0
        self._parts.append(Newest(hashes[has_key], np.array(offsets)[has_key]))
        self._count += len(self._parts[-1].offsets)
        self._unmerged += len(self._parts[-1].offsets)
        if self._unmerged >= _ROWS:
            self._parts = [self.rows()]
            self._count, self._unmerged = len(self._parts[0].offsets), 0

    def rows(self) -> Newest:
        """Return one row for each key, with its greatest offset."""
        if not self._parts:
            return Newest(np.empty((0, 2), np.uint64), np.empty(0, np.int64))
        hashes = np.concatenate([part.hashes for part in self._parts])
        offsets = np.concatenate([part.offsets for part in self._parts])
        order = np.lexsort((offsets, hashes[:, 1], hashes[:, 0]))
        hashes, offsets = hashes[order], offsets[order]
        is_last: Any = np.append((hashes[1:] != hashes[:-1]).any(axis=1), [True] * (len(offsets) > 0))
        return Newest(hashes[is_last], offsets[is_last])


def key_table() -> HashedKeys | SortedKeys:
    """Return an empty key table: HashedKeys if the compiled extension is available, otherwise SortedKeys."""
    return SortedKeys() if _twin is None else HashedKeys()
