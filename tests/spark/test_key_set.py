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


def contained(made: Any, keys: list[bytes | None]) -> list[bool]:
    found: list[bool] = made.contains(pa.array(keys, pa.binary())).tolist()
    return found


def test_a_set_contains_its_keys_alone() -> None:
    keys = [b"", b"\0", b"\0\0", b"a", b"a\0", *(b"key-%d" % number for number in range(5_000))]
    [made] = sets([*keys, *keys])
    assert len(made) == len(keys)
    sent = pickle.loads(pickle.dumps(made))  # noqa: S301 - made just now
    assert contained(sent, [*keys]) == [True] * len(keys)
    others: list[bytes | None] = [None, b"b", b"key-5000", b"\0\0\0"]
    assert contained(sent, others) == [False] * len(others)
    assert contained(sent, []) == []


def test_no_keys_are_no_set() -> None:
    assert sets([]) == []


def test_each_set_has_as_many_keys_as_its_memory_holds() -> None:
    made = sets((b"%d" % number for number in range(100)), 2048)
    assert [len(found) for found in made] == [32, 32, 32, 4]
    everywhere = [
        any(found) for found in zip(*(contained(one, [b"%d" % n for n in range(100)]) for one in made), strict=True)
    ]
    assert everywhere == [True] * 100


def test_memory_does_not_depend_on_the_number_or_the_size_of_the_keys() -> None:
    limit = 8 << 20
    sets([b"first"])  # imports modules before the measurement
    held = 0
    # one set, the next one, and the keys that are hashed at a time
    with memory_below(2 * limit + 65_536 * 200):
        for made in KeySet.split_keys((b"%0100d" % number for number in range(400_000)), limit):
            held += len(made)
    assert held == 400_000


def test_a_set_of_other_code_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    [made] = sets([b"a"])
    monkeypatch.setattr("stratalog_spark.keys.key_set.KIND", 1 - KIND)
    with pytest.raises(StorageError, match="install the same wheel on all"):
        contained(made, [b"a"])
