"""Sets of keys that are sent to tasks."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest

from stratalog.errors import StorageError
from stratalog.testing.memory import memory_below
from stratalog_spark.keys.hashes import KIND
from stratalog_spark.keys.key_set import KeySet


def sets(keys: Any, memory_bytes: int = 1 << 20) -> list[Any]:
    return list(KeySet.split_keys(keys, memory_bytes))


def contained(key_set: Any, keys: list[bytes | None]) -> list[bool]:
    verdicts: list[bool] = key_set.contains(pa.array(keys, pa.binary())).tolist()
    return verdicts


def test_a_set_contains_its_keys_alone() -> None:
    keys = [b"", b"\0", b"\0\0", b"a", b"a\0", *(b"key-%d" % number for number in range(5_000))]
    [key_set] = sets([*keys, *keys])
    assert len(key_set) == len(keys)
    unpickled = pickle.loads(pickle.dumps(key_set))  # noqa: S301 - made just now
    assert contained(unpickled, [*keys]) == [True] * len(keys)
    other_keys: list[bytes | None] = [None, b"b", b"key-5000", b"\0\0\0"]
    assert contained(unpickled, other_keys) == [False] * len(other_keys)
    assert contained(unpickled, []) == []


def test_no_keys_are_no_set() -> None:
    assert sets([]) == []


def test_each_set_has_as_many_keys_as_its_memory_holds() -> None:
    key_sets = sets((b"%d" % number for number in range(100)), 2048)
    assert [len(item) for item in key_sets] == [32, 32, 32, 4]
    everywhere = [
        any(item)
        for item in zip(*(contained(key_set, [b"%d" % n for n in range(100)]) for key_set in key_sets), strict=True)
    ]
    assert everywhere == [True] * 100


def test_memory_does_not_depend_on_the_number_or_the_size_of_the_keys() -> None:
    limit = 8 << 20
    sets([b"first"])  # imports modules before the measurement
    key_count = 0
    # one set, the next one, and the keys that are hashed at a time
    with memory_below(2 * limit + 65_536 * 200):
        for key_set in KeySet.split_keys((b"%0100d" % number for number in range(400_000)), limit):
            key_count += len(key_set)
    assert key_count == 400_000


def test_a_set_of_other_code_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    [key_set] = sets([b"a"])
    monkeypatch.setattr("stratalog_spark.keys.key_set.KIND", 1 - KIND)
    with pytest.raises(StorageError, match="install the same wheel on all"):
        contained(key_set, [b"a"])
