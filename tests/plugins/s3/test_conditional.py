"""Stores over the fsspec libraries of Google and Azure, tested with a file system that accepts the same keywords."""

from __future__ import annotations

import importlib
import inspect
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper

from stratalog.errors import ObjectNotFoundError, PluginImportError, StoreError, StorePermissionError
from stratalog.spi import Capability, Created, Env, ObjectStore
from stratalog.testing.contracts import ObjectStoreContract
from stratalog_s3.conditional import CONDITIONS, ConditionalStore
from stratalog_s3.location import parse_location
from stratalog_s3.secret import SecretOptions
from stratalog_s3.store import FsspecStore

OpenStore = Callable[..., ObjectStore]


class CloudError(Exception):
    """Error with the status as ``code``, like that of gcsfs."""

    def __init__(self, code: int) -> None:
        super().__init__(f"status {code}")
        self.code = code


class Cloud(AsyncFileSystemWrapper):  # type: ignore[misc]  # fsspec has no types
    """In-memory file system with coroutines, and with conditional uploads like those of the clouds."""

    lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for method in ("_pipe_file", "_cat_file"):  # the wrapper's methods would hide those of the classes
            self.__dict__.pop(method, None)

    def taken(self, path: str) -> bool:
        return path in self.sync_fs.store

    async def written(self, path: str, value: bytes, *, only_if_free: bool, refusal: Exception) -> None:
        with self.lock:
            if only_if_free and self.taken(path):
                raise refusal
            self.sync_fs.pipe_file(path, value)

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: object) -> bytes:
        """Return a range of an object. As in the clouds, a range that begins at or after the end is an error."""
        data: bytes = self.sync_fs.cat_file(path)
        if start is not None and start >= len(data):
            raise CloudError(416)
        return data[start:end]


class Google(Cloud):
    async def _pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: object) -> None:
        await self.written(path, value, only_if_free=mode == "create", refusal=CloudError(412))


class Azure(Cloud):
    async def _pipe_file(self, path: str, value: bytes, overwrite: bool = True, **_: object) -> None:  # noqa: FBT001, FBT002 - as adlfs has it
        await self.written(path, value, only_if_free=not overwrite, refusal=FileExistsError(path))


class Old(Cloud):
    async def _pipe_file(self, path: str, value: bytes, **_: object) -> None:
        await self.written(path, value, only_if_free=False, refusal=FileExistsError(path))


def store_over(kind: type[Cloud], scheme: str) -> ConditionalStore:
    class Store(ConditionalStore):
        def _make(self) -> Any:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(FsspecStore, "_make", lambda _: self.made())
                return super()._make()

        def made(self) -> Any:
            from fsspec.implementations.memory import MemoryFileSystem  # noqa: PLC0415 - beside its only use

            return kind(MemoryFileSystem(), asynchronous=False, skip_instance_cache=True), f"/{uuid.uuid4().hex}"

    location = parse_location(f"{scheme}://bucket/prefix")
    return Store(location, SecretOptions({}), Env().clock, read_only=False)


class TestGoogle(ObjectStoreContract):
    @pytest.fixture
    def store(self) -> Iterator[ObjectStore]:
        with store_over(Google, "gs") as object_store:
            yield object_store


class TestAzure(ObjectStoreContract):
    @pytest.fixture
    def store(self) -> Iterator[ObjectStore]:
        with store_over(Azure, "abfs") as object_store:
            yield object_store


@pytest.mark.parametrize("scheme", CONDITIONS)
def test_an_atomic_create_is_declared(open_store: OpenStore, scheme: str) -> None:
    assert open_store(f"{scheme}://bucket/p").capabilities == Capability.CREATE


@pytest.mark.parametrize(("kind", "scheme"), [(Google, "gs"), (Azure, "az")])
def test_a_lost_answer_is_unknown(
    deadline_ns: int, monkeypatch: pytest.MonkeyPatch, kind: type[Cloud], scheme: str
) -> None:
    async def hang_up(*_: object, **__: object) -> None:
        raise ConnectionResetError("reset")

    monkeypatch.setattr(Cloud, "written", hang_up)
    with store_over(kind, scheme) as store:
        assert store.create("a", b"x", deadline_ns=deadline_ns) is Created.UNKNOWN


@pytest.mark.parametrize(("kind", "scheme"), [(Google, "gs"), (Azure, "az")])
def test_a_missing_bucket_is_an_error(
    deadline_ns: int, monkeypatch: pytest.MonkeyPatch, kind: type[Cloud], scheme: str
) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise FileNotFoundError("https://storage.example/upload/storage/v1/b/bucket/o")

    monkeypatch.setattr(Cloud, "written", refuse)
    with store_over(kind, scheme) as store, pytest.raises(ObjectNotFoundError):
        store.create("a", b"x", deadline_ns=deadline_ns)


def test_a_forbidden_create_is_an_error(deadline_ns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise OSError("Forbidden: https://storage.example/upload/storage/v1/b/bucket/o\n...")  # as gcsfs has it

    monkeypatch.setattr(Cloud, "written", refuse)
    with store_over(Google, "gs") as store, pytest.raises(StorePermissionError):
        store.create("a", b"x", deadline_ns=deadline_ns)


def test_a_library_that_would_overwrite_is_refused(deadline_ns: int) -> None:
    with store_over(Old, "gs") as store, pytest.raises(PluginImportError, match="too old"):
        store.create("a", b"x", deadline_ns=deadline_ns)


def test_a_full_quota_is_no_exists(deadline_ns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise CloudError(403)

    monkeypatch.setattr(Cloud, "written", refuse)
    with store_over(Google, "gs") as store, pytest.raises(StoreError):
        store.create("a", b"x", deadline_ns=deadline_ns)


@pytest.mark.parametrize(
    ("library", "kind", "scheme"),
    [("gcsfs", "GCSFileSystem", "gs"), ("adlfs", "AzureBlobFileSystem", "abfs")],
)
def test_the_real_library_knows_the_keyword(library: str, kind: str, scheme: str) -> None:
    module = pytest.importorskip(library, reason=f"{library} is not installed: its keyword cannot be looked up")
    assert issubclass(getattr(module, kind), AsyncFileSystem)
    assert set(CONDITIONS[scheme]) <= set(inspect.signature(getattr(module, kind)._pipe_file).parameters)  # noqa: SLF001 - fsspec's name
    assert importlib.import_module(library) is module
