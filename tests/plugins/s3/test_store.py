from __future__ import annotations

import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.utils import infer_storage_options

import stratalog_s3
from stratalog.errors import ConfigError, ObjectNotFoundError, PluginImportError, StoreError, StoreTimeoutError
from stratalog.spi import Buffer, BytesSource, Capability, Created, Env, ObjectStore
from stratalog.testing.contracts import ObjectStoreContract
from stratalog_s3.location import parse_location
from stratalog_s3.secret import SecretOptions
from stratalog_s3.store import FsspecStore
from stratalog_s3.uploads import PART_BYTES, part_bytes, parts

OpenStore = Callable[..., ObjectStore]


class AsyncStore(FsspecStore):
    """Store over a file system whose methods are coroutines, like those of the clouds."""

    def _make(self) -> Any:
        file_system, root = super()._make()
        return AsyncFileSystemWrapper(file_system, asynchronous=False, skip_instance_cache=True), root


@pytest.fixture(params=[FsspecStore, AsyncStore])
def store_kind(request: pytest.FixtureRequest) -> type[FsspecStore]:
    kind: type[FsspecStore] = request.param
    return kind


@pytest.fixture
def store(store_kind: type[FsspecStore]) -> Iterator[FsspecStore]:
    location = parse_location(f"memory://{uuid.uuid4().hex}/p")
    with store_kind(location, SecretOptions({}), Env().clock, read_only=False) as memory_store:
        yield memory_store


class TestGeneric(ObjectStoreContract):
    @pytest.fixture
    def store(self, store: FsspecStore) -> ObjectStore:
        return store


def test_no_atomic_create_is_declared(store: FsspecStore) -> None:
    assert store.capabilities == Capability.NONE


@pytest.mark.parametrize(
    ("failure", "expected"),
    [(ConnectionRefusedError("refused"), StoreTimeoutError), (OSError("no libjvm"), StoreError)],
)
def test_a_failure_to_connect_is_a_typed_error_of_every_call(
    store: FsspecStore,
    deadline_ns: int,
    monkeypatch: pytest.MonkeyPatch,
    failure: Exception,
    expected: type[StoreError],
) -> None:
    """The file systems of some protocols, such as sftp and hdfs, connect when they are created."""

    def fail(*_: object, **__: object) -> None:
        raise failure

    monkeypatch.setattr("fsspec.core.url_to_fs", fail)
    calls: list[Callable[[], object]] = [
        lambda: store.read("a", deadline_ns=deadline_ns),
        lambda: store.list("", deadline_ns=deadline_ns),
        lambda: store.put_file("a", BytesSource(b"x"), deadline_ns=deadline_ns),
        lambda: store.create("a", b"x", deadline_ns=deadline_ns),
        lambda: store.delete(["a"], deadline_ns=deadline_ns),
    ]
    for call in calls:
        with pytest.raises(expected, match=str(failure)):
            call()


class _SftpFileSystem(LocalFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Files as over SFTP: the constructor refuses unknown options, and writes do not create folders."""

    protocol = ("sftp", "ssh")

    def __init__(self, host: str, password: str) -> None:
        assert (host, password) == ("host", "a password")
        super().__init__()

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(infer_storage_options(path)["path"])

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, str]:
        return {"host": infer_storage_options(path)["host"]}


def test_objects_are_stored_over_sftp(
    open_store: OpenStore, tmp_path: Path, deadline_ns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(vars(sys.modules["fsspec.registry"])["_registry"], "sftp", _SftpFileSystem)
    store = open_store(f"sftp://host{tmp_path}/tier", {"password": "a password"})
    assert store.create("log/manifest/1", b"{}", deadline_ns=deadline_ns) is Created.CREATED
    store.put_file("log/segments/1", BytesSource(b"records"), deadline_ns=deadline_ns)
    assert [info.key for info in store.list("log/", deadline_ns=deadline_ns)] == ["log/manifest/1", "log/segments/1"]
    assert store.read("log/segments/1", deadline_ns=deadline_ns) == b"records"


def test_a_folder_over_sftp_is_created_by_one_thread_at_a_time(
    open_store: OpenStore, tmp_path: Path, deadline_ns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SFTP has no request that creates a folder unless it exists. Of two threads that see no folder, one would fail."""
    created = list[str]()

    class Folders(_SftpFileSystem):
        def makedirs(self, path: str, exist_ok: bool = False) -> None:  # noqa: FBT001, FBT002 - as in the base class
            if not Path(path).is_dir():
                assert vars(store)["_folders"].locked()
                created.append(path)
            super().makedirs(path, exist_ok=exist_ok)

        def put_file(self, path1: str, path2: str, **_: object) -> None:
            self.makedirs(path2.rpartition("/")[0], exist_ok=True)  # as fsspec does over SFTP
            super().put_file(path1, path2)

    monkeypatch.setitem(vars(sys.modules["fsspec.registry"])["_registry"], "sftp", Folders)
    store = open_store(f"sftp://host{tmp_path}/tier", {"password": "a password"})
    for number, size_bytes in enumerate((1, PART_BYTES + 1)):
        store.put_file(f"log/{number}/a", BytesSource(bytes(size_bytes)), deadline_ns=deadline_ns)
    assert [Path(path).name for path in created] == ["0", "1"]


def test_a_large_object_is_written_through_a_temporary_file(store: FsspecStore, deadline_ns: int) -> None:
    data = bytes(PART_BYTES) + b"end"
    store.put_file("large", BytesSource(data), deadline_ns=deadline_ns)
    assert store.read("large", PART_BYTES - 2, None, deadline_ns=deadline_ns) == b"\0\0end"


def test_a_failed_upload_is_discarded_and_its_error_kept(
    store: FsspecStore, deadline_ns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fsspec's own upload makes an incomplete object visible when a write fails."""

    def put_half(self: MemoryFileSystem, lpath: str, rpath: str, **_: object) -> None:
        del lpath
        self.pipe_file(rpath, b"half")
        raise OSError(5, "broken")

    monkeypatch.setattr(MemoryFileSystem, "put_file", put_half)
    with pytest.raises(StoreError, match="broken"):
        store.put_file("large", BytesSource(bytes(PART_BYTES + 1)), deadline_ns=deadline_ns)
    with pytest.raises(ObjectNotFoundError):
        store.read("large", deadline_ns=deadline_ns)


def test_an_upload_that_is_retried_cannot_be_deleted_by_its_failed_attempt(
    store: FsspecStore, deadline_ns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A delete in an outage may take effect later, for example after the store's client has given up."""
    pipe, remove = MemoryFileSystem.pipe_file, MemoryFileSystem.rm_file
    fails, has_begun, is_over, is_removed = (threading.Event() for _ in range(4))
    fails.set()

    def write(self: MemoryFileSystem, path: str, value: bytes, **_: object) -> None:
        pipe(self, path, value[:2] if fails.is_set() else value)
        if fails.is_set():
            raise ConnectionResetError("reset")

    def remove_late(self: MemoryFileSystem, path: str) -> None:
        has_begun.set()
        is_over.wait(20)
        remove(self, path)
        is_removed.set()

    monkeypatch.setattr("stratalog_s3.store._DISCARD_NS", 100_000_000)
    monkeypatch.setattr(MemoryFileSystem, "rm_file", remove_late)
    monkeypatch.setattr(MemoryFileSystem, "pipe_file", write)
    with pytest.raises(StoreTimeoutError):
        store.put_file("a", BytesSource(b"data"), deadline_ns=deadline_ns)
    fails.clear()
    store.put_file("a", BytesSource(b"data"), deadline_ns=deadline_ns)
    is_over.set()
    assert not has_begun.is_set() or is_removed.wait(20)
    assert store.read("a", deadline_ns=deadline_ns) == b"data"


def test_a_create_that_may_have_been_applied_is_unknown(
    store: FsspecStore, deadline_ns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hang_up(*_: object, **__: object) -> None:
        raise ConnectionResetError("reset")

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", hang_up)
    assert store.create("a", b"x", deadline_ns=deadline_ns) is Created.UNKNOWN


def test_a_look_that_fails_is_no_create(store: FsspecStore, deadline_ns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang_up(*_: object, **__: object) -> None:
        raise ConnectionResetError("reset")

    monkeypatch.setattr(MemoryFileSystem, "info", hang_up)
    with pytest.raises(StoreTimeoutError):
        store.create("a", b"x", deadline_ns=deadline_ns)


def test_single_keys_of_a_delete_may_fail(
    store: FsspecStore, deadline_ns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: MemoryFileSystem, path: str) -> None:
        del self
        raise PermissionError(path) if path.endswith("denied") else FileNotFoundError(path)

    monkeypatch.setattr(MemoryFileSystem, "rm_file", refuse)
    monkeypatch.setattr(MemoryFileSystem, "_rm", refuse)
    assert set(store.delete(["denied", "gone"], deadline_ns=deadline_ns)) == {"denied"}


def test_times_and_tags_of_any_file_system_are_understood(
    store: FsspecStore, deadline_ns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    infos = {
        "a": {"size": 1, "updated": "2023-11-14T22:13:20+00:00", "etag": '"tag"'},
        "b": {"size": None, "mtime": 1_700_000_000.0},
        "c": {"size": 3, "last_modified": "some day"},
    }

    def find(self: MemoryFileSystem, path: str, **_: object) -> dict[str, Any]:
        del self
        return {f"{path}/{name}": info for name, info in infos.items()}

    monkeypatch.setattr(MemoryFileSystem, "find", find)
    properties = [(info.size_bytes, info.etag, info.modified_ms) for info in store.list("", deadline_ns=deadline_ns)]
    assert properties == [(1, "tag", 1_700_000_000_000), (0, "", 1_700_000_000_000), (3, "", 0)]


@pytest.mark.parametrize(
    ("raised", "typed"), [(ImportError("install gcsfs"), PluginImportError), (TypeError("no option x"), ConfigError)]
)
def test_a_file_system_that_cannot_be_created_reports_the_reason(
    open_store: OpenStore, deadline_ns: int, monkeypatch: pytest.MonkeyPatch, raised: Exception, typed: type[Exception]
) -> None:
    def refuse(uri: str, **_: object) -> None:
        del uri
        raise raised

    monkeypatch.setattr("fsspec.core.url_to_fs", refuse)
    store = open_store("gs://bucket/p")
    with pytest.raises(typed, match=str(raised)):
        store.list("", deadline_ns=deadline_ns)


def test_every_scheme_has_one_provider() -> None:
    schemes = [scheme for provider in stratalog_s3.stratalog_object_stores() for scheme in provider.schemes]
    assert len(schemes) == len(set(schemes))
    assert {"s3", "s3a", "file", "memory", "gs", "abfs"} <= set(schemes)


def test_offering_stores_imports_no_library() -> None:
    script = (
        "import sys, stratalog_s3; stratalog_s3.stratalog_object_stores(); "
        "print([name for name in ('fsspec', 's3fs', 'botocore', 'asyncio') if name in sys.modules])"
    )
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)  # noqa: S603 - ours
    assert process.stdout.strip() == "[]"


# --- uploads -----------------------------------------------------------------------------------------------------


class Pieces:
    """A source that yields chunks of the given sizes."""

    def __init__(self, *sizes: int) -> None:
        self._sizes = sizes

    @property
    def size_bytes(self) -> int:
        return sum(self._sizes)

    def chunks(self, chunk_bytes: int) -> Iterator[Buffer]:
        del chunk_bytes
        for size in self._sizes:
            yield bytes(size)


def test_parts_join_to_the_source() -> None:
    data = bytes(range(256)) * 5
    pieces = [part.read() for part in parts(BytesSource(data), "key", 100)]
    assert b"".join(pieces) == data
    assert [len(part) for part in pieces] == [100] * 12 + [80]


@pytest.mark.parametrize(
    ("sizes", "lengths"),
    [((), [0]), ((3,), [3]), ((10,), [10]), ((11,), [10, 1]), ((4, 4, 4), [10, 2]), ((35,), [10, 10, 10, 5])],
)
def test_parts_have_one_size(sizes: tuple[int, ...], lengths: list[int]) -> None:
    assert [len(part.getbuffer()) for part in parts(Pieces(*sizes), "key", 10)] == lengths


def test_parts_are_never_too_many() -> None:
    for size_bytes in (1, PART_BYTES, 10_000 * PART_BYTES, 10_000 * PART_BYTES + 1, 1 << 42):
        assert -(-size_bytes // part_bytes(size_bytes)) <= 10_000


def test_a_folder_of_temporary_files_stays_clean(
    store: FsspecStore, deadline_ns: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    store.put_file("large", BytesSource(bytes(PART_BYTES + 1)), deadline_ns=deadline_ns)
    assert list(tmp_path.iterdir()) == []
