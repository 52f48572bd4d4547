"""``stratalog doctor`` checks a store and a directory, gives advice, and leaves no file or object."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from command_runs import printed_items
from stratalog import Record, open_engine
from stratalog.cli.app import run
from stratalog.cli.doctor.diagnosis import Outcome, run_checks
from stratalog.cli.doctor.store_checks import StoreChecks
from stratalog.config.engine_settings import EngineConfig
from stratalog.config.settings_sources import Settings
from stratalog.env import Env
from stratalog.reading.open_reader import open_host
from stratalog.spi.objects import Created, ObjectInfo, ObjectStore
from stratalog.testing.s3 import LocalS3
from stratalog.tier.store.store import TierStore

STORE_CHECKS = [
    "list", "create", "conditional create", "upload", "ranged read", "list after a write", "clock", "checksums",
    "unfinished uploads", "latency", "delete",
]  # fmt: skip
DIRECTORY_CHECKS = ["contents", "owner", "lock", "last stop", "free space", "file descriptors", "sync"]
Doctor = Callable[..., tuple[int, dict[str, dict[str, str]]]]


@pytest.fixture
def doctor(capsys: pytest.CaptureFixture[str]) -> Doctor:
    """Return a function that runs the command, and returns its exit code and its rows by the name of the check."""

    def ran(*arguments: object) -> tuple[int, dict[str, dict[str, str]]]:
        capsys.readouterr()
        code = run(["doctor", *map(str, arguments), "--json"])
        rows = printed_items(capsys)
        return code, {row["check"]: row for row in rows}

    return ran


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with open_engine(tmp_path / "data") as engine:
        engine.create_topic("t")
        engine.log("t", 0).append([Record(value=b"v")])
    return tmp_path / "data"


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


# --- directories ------------------------------------------------------------------------------------------------------


def test_a_good_directory_is_examined_and_not_changed(data: Path, doctor: Doctor) -> None:
    before = names(data)
    code, rows = doctor(data)
    assert code == 0
    assert list(rows) == DIRECTORY_CHECKS
    assert rows["contents"]["found"] == "1 logs"
    assert rows["last stop"]["outcome"] == "ok"
    assert names(data) == before


def test_an_unclean_stop_advises_to_recover(data: Path, doctor: Doctor) -> None:
    (data / ".kafka_cleanshutdown").unlink()
    row = doctor(data)[1]["last stop"]
    assert row["outcome"] == "note"
    assert f"stratalog recover {data}" in row["change"]


def test_a_directory_in_use_is_not_written_to(data: Path, doctor: Doctor) -> None:
    with open_engine(data):
        code, rows = doctor(data)
    assert code == 0
    assert rows["lock"]["outcome"] == "note"
    assert rows["sync"]["outcome"] == rows["last stop"]["outcome"] == "skipped"


def test_a_broker_is_named_by_its_ids(data: Path, doctor: Doctor) -> None:
    (data / "meta.properties").write_text("version=1\ncluster.id=abc\nnode.id=7\n")
    assert doctor(data)[1]["owner"]["found"] == "a Kafka broker: cluster.id=abc, node.id=7, version=1"


def test_a_read_only_file_system_is_reported(data: Path, doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, **_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(Path, "unlink", refuse)  # as Linux does, also if the file does not exist
    code, rows = doctor(data)
    assert (code, rows["sync"]["outcome"]) == (1, "wrong")
    assert "Read-only file system" in rows["sync"]["found"]


def test_the_file_of_a_killed_process_does_not_disturb(data: Path, doctor: Doctor) -> None:
    (data / ".stratalog-doctor").touch()
    code, rows = doctor(data)
    assert (code, rows["sync"]["outcome"]) == (0, "ok")
    assert not (data / ".stratalog-doctor").exists()


def test_the_folder_of_a_log_is_no_log_directory(data: Path, doctor: Doctor) -> None:
    code, rows = doctor(data / "t-0")
    assert code == 1
    assert list(rows) == ["contents"]
    assert rows["contents"]["outcome"] == "wrong"
    assert str(data) in rows["contents"]["found"]


def test_a_malformed_topics_file_is_wrong(data: Path, doctor: Doctor) -> None:
    (data / "stratalog-topics.json").write_text("junk")
    code, rows = doctor(data)
    assert (code, rows["contents"]["outcome"]) == (1, "wrong")
    assert "the topics file is malformed" in rows["contents"]["found"]
    change = "restore the file from a copy, or delete it: topics without stored settings keep all their records"
    assert rows["contents"]["change"] == change


def test_an_empty_directory_can_be_used(tmp_path: Path, doctor: Doctor) -> None:
    code, rows = doctor(tmp_path)
    assert code == 0
    assert "an engine can begin here" in rows["contents"]["found"]
    assert names(tmp_path) == []


def test_a_directory_with_files_of_another_program_is_wrong(tmp_path: Path, doctor: Doctor) -> None:
    (tmp_path / "notes.txt").touch()
    code, rows = doctor(tmp_path)
    assert code == 1
    assert list(rows) == ["contents"]
    assert "the directory contains other files, and no logs" in rows["contents"]["found"]


def test_a_missing_directory_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", str(tmp_path / "missing")]) == 2
    assert "no such directory" in capsys.readouterr().err


@pytest.mark.parametrize(("free", "outcome"), [(1 << 20, "wrong"), (5 << 30, "note"), (50 << 30, "ok")])
def test_little_free_space_is_reported(
    data: Path, doctor: Doctor, free: int, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free, total=100 << 30))
    assert doctor(data)[1]["free space"]["outcome"] == outcome


# --- stores -----------------------------------------------------------------------------------------------------------


def test_a_folder_as_a_store_keeps_all_promises(tmp_path: Path, doctor: Doctor) -> None:
    code, rows = doctor(tmp_path.as_uri())
    assert code == 0
    assert list(rows) == STORE_CHECKS
    assert {row["outcome"] for row in rows.values()} == {"ok"}
    assert names(tmp_path) == []


def test_a_missing_bucket_ends_the_checks(tmp_path: Path, doctor: Doctor) -> None:
    code, rows = doctor((tmp_path / "missing").as_uri())
    assert code == 1
    assert list(rows) == ["list"]
    assert not (tmp_path / "missing").exists()


class StoreWrapper:
    """Wrapper of a store whose subclasses break one operation."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)


class Overwriting(StoreWrapper):
    def create(self, key: str, data: bytes, *, deadline_ns: int) -> Created:
        self._store.delete([key], deadline_ns=deadline_ns)
        return self._store.create(key, data, deadline_ns=deadline_ns)


class OfTheFuture(StoreWrapper):
    def list(self, prefix: str, *, after: str = "", limit: int = 1000, deadline_ns: int) -> Sequence[ObjectInfo]:
        now_ms = Env().clock.now_ms() + 3_600_000
        infos = self._store.list(prefix, after=after, limit=limit, deadline_ns=deadline_ns)
        return [ObjectInfo(info.key, info.size_bytes, info.etag, now_ms) for info in infos]


class Shifted(StoreWrapper):
    def read(self, key: str, start: int | None = None, end: int | None = None, *, deadline_ns: int) -> bytes:
        if start is None or end is None:
            return self._store.read(key, start, end, deadline_ns=deadline_ns)
        return self._store.read(key, start + 1, end + 1, deadline_ns=deadline_ns)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ObjectStore]:
    with open_host(Settings(), (), None) as host:
        catalogue = host.registry.object_stores()
        provider = catalogue.by_scheme("file")
        yield catalogue.open(
            provider, host.opener.context(provider, location=tmp_path.as_uri(), options={}, read_only=False)
        )


@pytest.mark.parametrize(
    ("fault", "check", "advice"),
    [
        (Overwriting, "conditional create", "one engine at a time"),
        (OfTheFuture, "clock", "NTP"),
        (Shifted, "ranged read", "Range"),
    ],
)
def test_each_fault_of_a_store_is_found_with_advice(
    store: ObjectStore, tmp_path: Path, fault: Callable[[ObjectStore], ObjectStore], check: str, advice: str
) -> None:
    env = Env()
    checks = StoreChecks(TierStore(fault(store), env, EngineConfig()), env)
    faults = [
        (name, verdict.change) for name, verdict in run_checks(checks.checks()) if verdict.outcome is Outcome.WRONG
    ]
    checks.close()
    ((name, change),) = faults
    assert name == check
    assert advice in change
    assert names(tmp_path) == []


def test_a_missing_right_is_named(local_s3: LocalS3, doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "local-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "local-secret")
    place = (local_s3.uri("doctor"), "--tier-option", f"endpoint_url={local_s3.endpoint_url}")
    code, rows = doctor(*place)
    assert code == 0, rows
    assert list(rows) == STORE_CHECKS
    local_s3.fail("ListMultipartUploads", status=403, code="AccessDenied", times=100)
    code, rows = doctor(*place)
    local_s3.heal()
    assert code == 1
    assert [name for name, row in rows.items() if row["outcome"] == "wrong"] == ["unfinished uploads"]
    assert rows["unfinished uploads"]["change"].startswith("grant list, get, put and delete on the prefix")
    assert "grant" not in rows["unfinished uploads"]["found"]
