"""Sets of keys, stored as sorted hashes of 16 bytes. The size of a set does not depend on the size of its keys."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa

from stratalog.errors import StorageError
from stratalog_spark.keys.hashes import DIFFERENT_KINDS, KIND, SECRET_BYTES, hash_keys

_HASH: Final = (
    "S16"  # numpy ignores zero bytes at the end of S16, but this cannot make two different hashes of 16 bytes equal
)
_KEY_BYTES: Final = 64  # memory that one key needs while a set is created, sorted and sent
_BLOCK_KEYS: Final = 1 << 12  # number of keys that are hashed together


@dataclass(frozen=True, slots=True)
class KeySet:
    """A set of keys that can be sent to tasks. Two keys are the same key if their 128-bit hashes are equal.

    Attributes:
        hashes: distinct hashes, ascending, as a numpy array of ``S16``.
        secret: secret of the hashes. Without a secret, a producer could create a key with the hash of another key.
        kind: ``KIND`` of the process that computed the hashes.
    """

    hashes: Any
    secret: bytes = field(repr=False)
    kind: int

    @classmethod
    def split_keys(cls, keys: Iterable[bytes], memory_bytes: int) -> Iterator[Self]:
        """Yield sets that together contain all keys. The keys are read one by one.

        A set needs at most about ``memory_bytes``, even while it is created.
        """
        secret, remaining_keys = secrets.token_bytes(SECRET_BYTES), iter(keys)
        max_keys = max(memory_bytes // _KEY_BYTES, 1)
        for first in remaining_keys:
            set_keys = chain([first], islice(remaining_keys, max_keys - 1))
            parts = []
            while block := list(islice(set_keys, _BLOCK_KEYS)):
                parts.append(_rows(hash_keys(pa.array(block, pa.binary()), secret)))
            hashes: Any = np.concatenate(parts)
            parts.clear()
            hashes.sort()
            yield cls(hashes[np.append([True], hashes[1:] != hashes[:-1])], secret, KIND)

    def __len__(self) -> int:
        return len(self.hashes)

    def contains(self, keys: pa.Array[Any]) -> Any:
        """Return a numpy array of booleans: True for each key of a binary column that the set contains; False for null.

        Raises:
            StorageError: this process and the process that created the set use different hash functions, because only
                one of them has the compiled code.
        """
        if self.kind != KIND:
            raise StorageError(DIFFERENT_KINDS)
        key_hashes = _rows(hash_keys(keys, self.secret))
        indexes: Any = np.searchsorted(self.hashes, key_hashes)
        indexes[indexes == len(self.hashes)] = 0
        return self.hashes[indexes] == key_hashes


def _rows(hashes: Any) -> Any:
    """Return hashes of shape (n, 2) as a numpy array of n byte strings."""
    return np.ascontiguousarray(hashes).view(_HASH).ravel()
