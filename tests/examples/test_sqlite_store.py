"""The example of an object store in one file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import sqlite_store
from example_plugins import imported_of_stratalog, wheel_of
from sqlite_store.store import PART_BYTES, SqliteStore
from stratalog import Record, open_engine, open_reader
from stratalog.errors import ConfigError, ReadOnlyError, StoreError
from stratalog.spi import BytesSource, Env, ObjectStore
from stratalog.testing.contracts import EngineContract, EngineSetup, ObjectStoreContract
from tier_bed import TierBed


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ObjectStore]:
    sqlite_store = SqliteStore(str(tmp_path / "tier.db"), Env().clock, read_only=False)
    yield sqlite_store
    sqlite_store.close()


@pytest.fixture
def deadline_ns() -> int:
    return Env().clock.monotonic_ns() + 60_000_000_000


class TestSqliteStore(ObjectStoreContract):
    @pytest.fixture
    def store(self, store: ObjectStore) -> ObjectStore:
        return store


@pytest.mark.long
class TestSqliteStoreInAnEngine(EngineContract):
    opens_without = False
    missing = "sqlite"

    @pytest.fixture
    def engine_setup(self, tmp_path: Path) -> EngineSetup:
        return EngineSetup(plugins=[sqlite_store], tier=f"sqlite://{tmp_path / 'tier.db'}")


def test_the_tier_takes_it_for_several_writers(store: ObjectStore) -> None:
    with TierBed().open(store) as tier:
        assert (tier.availability.shared, tier.availability.reason) == (True, "")


@pytest.mark.parametrize("way", ["put_file", "create"])
def test_ranges_across_parts_are_read(store: ObjectStore, deadline_ns: int, way: str) -> None:
    data = bytes(range(256)) * (3 * PART_BYTES // 256) + b"the end"
    if way == "create":
        store.create("large", data, deadline_ns=deadline_ns)
    else:
        store.put_file("large", BytesSource(data), deadline_ns=deadline_ns)
    for start, end in ((0, 1), (PART_BYTES - 1, PART_BYTES + 1), (5, 3 * PART_BYTES), (3 * PART_BYTES, len(data) + 9)):
        assert store.read("large", start, end, deadline_ns=deadline_ns) == data[start:end]


def test_an_upload_that_a_crash_interrupted_can_be_aborted(tmp_path: Path, deadline_ns: int) -> None:
    path = str(tmp_path / "tier.db")
    crashed_store = SqliteStore(path, Env().clock, read_only=False)
    crashed_store._upload_parts("a/b", BytesSource(b"never named"), deadline_ns)  # noqa: SLF001 - a crash before the last step
    crashed_store.close()
    store = SqliteStore(path, Env().clock, read_only=False)
    (upload,) = store.unfinished("a/", deadline_ns=deadline_ns)
    assert upload.key == "a/b"
    store.abort(upload, deadline_ns=deadline_ns)
    assert store.unfinished("", deadline_ns=deadline_ns) == []
    store.close()


def test_a_store_for_reading_writes_nothing(tmp_path: Path, store: ObjectStore, deadline_ns: int) -> None:
    store.create("a", b"x", deadline_ns=deadline_ns)
    reader = SqliteStore(str(tmp_path / "tier.db"), Env().clock, read_only=True)
    assert reader.read("a", deadline_ns=deadline_ns) == b"x"
    with pytest.raises(ReadOnlyError):
        reader.create("b", b"x", deadline_ns=deadline_ns)
    reader.close()
    with pytest.raises(StoreError, match="the database cannot be opened"):
        SqliteStore(str(tmp_path / "missing.db"), Env().clock, read_only=True)
    assert not (tmp_path / "missing.db").exists()


def test_an_engine_uses_it_by_its_uri(tmp_path: Path) -> None:
    tier = f"sqlite://{tmp_path / 'tier.db'}"
    with open_engine(tmp_path / "data", tier=tier, plugins=[sqlite_store]) as engine:
        engine.create_topic("t")
        engine.log("t", 0).append([Record(value=b"v")])
        engine.log("t", 0).roll()
        engine.offload()
    with open_reader(tier, plugins=[sqlite_store]) as reader:
        assert [record.value for record in reader.log("t", 0).records()] == [b"v"]


def test_a_uri_without_a_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="sqlite:///PATH"):
        open_engine(tmp_path, tier="sqlite://host/file", plugins=[sqlite_store])


def test_it_imports_the_contract_and_nothing_else_of_stratalog() -> None:
    assert imported_of_stratalog("sqlite_store") <= {"stratalog", "stratalog.errors", "stratalog.spi"}


@pytest.mark.long
def test_it_can_be_installed(tmp_path: Path) -> None:
    names, points = wheel_of("sqlite_store", tmp_path)
    assert {"sqlite_store/__init__.py", "sqlite_store/store.py", "sqlite_store/py.typed"} <= names
    assert points.split() == ["[stratalog.v1]", "sqlite_store", "=", "sqlite_store"]
