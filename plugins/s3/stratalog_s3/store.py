"""Base class of the stores on fsspec file systems, and the store for protocols without an atomic create."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import tempfile
import threading
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar, Final, NoReturn

from fsspec.asyn import get_loop

from stratalog.errors import (
    ClosedError,
    ConfigError,
    ObjectNotFoundError,
    PluginImportError,
    ReadOnlyError,
    StorageError,
    StoreError,
)
from stratalog.spi import Buffer, ByteSource, Capability, Clock, Created, ObjectInfo, ObjectStore, OpenContext
from stratalog_s3.deadline import run, seconds_left
from stratalog_s3.failures import convert_error, create_outcome, is_past_the_end
from stratalog_s3.location import Location, check_key, check_prefix, key_at, parse_location, place_of
from stratalog_s3.secret import SecretOptions
from stratalog_s3.settings import TransportSection
from stratalog_s3.tls import UNENCRYPTED, check_endpoint, check_options, endpoints
from stratalog_s3.uploads import PART_BYTES, counted_chunks

_LOGGER: Final = logging.getLogger("stratalog.s3")
# schemes in which a part of a key is the name of a file or folder
FILE_SCHEMES: Final = frozenset({"hdfs", "webhdfs", "sftp", "ssh", "smb"})
_DISCARD_NS: Final = 5_000_000_000
_TIME_FIELDS: Final = ("LastModified", "last_modified", "mtime", "updated", "modified", "created")


class StoreBase(ObjectStore):
    """Base class of this plugin's stores on fsspec. The file system is created at the first use in each process.

    Args:
        read_only: if True, each write raises ReadOnlyError.
    """

    def __init__(self, location: Location, options: SecretOptions, clock: Clock, *, read_only: bool) -> None:
        self._location, self._options, self._clock, self._read_only = location, options, clock, read_only
        self._lock = threading.Lock()
        self._current: Any = None  # under _lock; typed as Any, because fsspec has no types
        self._owner_pid = 0  # owner of `_current`: event loops and connections do not survive a fork
        self._closed = False

    @property
    def uri(self) -> str:
        """URI of the store, without secrets."""
        return str(self._location)

    def close(self) -> None:
        """Close the connections, and make all later requests raise ClosedError. Idempotent."""
        with self._lock:
            self._closed = True
            filesystem, self._current = self._current, None
            if filesystem is not None and self._owner_pid == os.getpid():
                self._dispose(filesystem)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.uri!r})"

    def _filesystem(self) -> Any:
        """Return the file system of this process. Create the file system at the first call in the process."""
        with self._lock:
            if self._closed:
                raise ClosedError(f"the object store is closed uri={self.uri}")
            if self._current is None or self._owner_pid != os.getpid():
                self._current, self._owner_pid = self._make(), os.getpid()
            return self._current

    @abstractmethod
    def _make(self) -> Any:
        """Create the file system without connecting."""

    def _dispose(self, filesystem: Any) -> None:
        """Release the connections of a file system. Do nothing if it has no connections."""

    def _refuse_write(self) -> None:
        if self._read_only:
            raise ReadOnlyError("the object store was opened for reading", self.uri)

    def _convert_error(self, error: Exception, key: str) -> StorageError:
        """Return stratalog's error for an error of the file system."""
        return convert_error(error, key, self.uri, self._options)

    @contextlib.contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        """Return a context manager that converts library errors to stratalog's errors."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the errors of the libraries have no common type
            self._raise(error, key)

    @contextlib.contextmanager
    def _create_errors(self, key: str) -> Iterator[list[Created]]:
        """Convert library errors of a create.

        Yield a list. After the block, the only element of the list is the result.
        """
        outcome = [Created.CREATED]
        try:
            yield outcome
        except Exception as error:  # noqa: BLE001 - the errors of the libraries have no common type
            result = create_outcome(error, key, self.uri, self._options)
            if not isinstance(result, Created):
                self._raise(error, key)
            outcome[0] = result

    def _raise(self, error: Exception, key: str) -> NoReturn:
        """Raise stratalog's error for ``error``. Its cause is ``error``, or None if ``error`` contains a secret."""
        problem = self._convert_error(error, key)
        if problem is error:
            raise error
        raise problem from self._options.safe_cause(error)


class FsspecStore(StoreBase):
    """A store on any file system of fsspec, for protocols without an atomic create. Only one writer may use it."""

    in_process: ClassVar[bool] = False  # True if calls cannot hang; they then run on the caller's thread

    def __init__(self, location: Location, options: SecretOptions, clock: Clock, *, read_only: bool) -> None:
        super().__init__(location, options, clock, read_only=read_only)
        self._folders = threading.Lock()  # concurrent calls of makedirs for one folder can fail

    @property
    def capabilities(self) -> Capability:
        """No capability, because ``create`` is not atomic, and fsspec lists whole folders."""
        return Capability.NONE

    def put_file(self, key: str, source: ByteSource, *, deadline_ns: int) -> ObjectInfo:
        """Upload an object in one call of the file system. A source above 16 MiB is written to a temporary file first.

        After a failed upload, delete the partial object if possible. Do not delete it if the error is retriable,
        because the retry replaces the object, and a late delete could delete the new object.
        """
        path = self._writable(key)
        with self._errors(key), self._discarding(path, key):
            if source.size_bytes <= PART_BYTES:
                self._pipe(path, b"".join(counted_chunks(source, key)), deadline_ns)
            else:
                self._put_spooled(path, source, key, deadline_ns)
        return ObjectInfo(key, source.size_bytes)

    def create(self, key: str, data: Buffer, *, deadline_ns: int) -> Created:
        """Write the object if the key does not exist. The call is not atomic, so only one writer may use the store."""
        path = self._writable(key)
        try:
            with self._errors(key):
                self._call("info", path, deadline_ns=deadline_ns)
        except ObjectNotFoundError:
            with self._create_errors(key) as outcome:
                self._pipe(path, bytes(data), deadline_ns)
            return outcome[0]
        return Created.EXISTS

    def read(self, key: str, start: int | None = None, end: int | None = None, *, deadline_ns: int) -> bytes:
        """Return the bytes [start, end) of an object. The defaults are the start and the end of the object.

        If the range is empty, the method sends no request.
        """
        path = self._path(check_key(key))
        if end is not None and end <= (start or 0):
            return b""
        with self._errors(key):
            try:
                return bytes(self._call("cat_file", path, start=start, end=end, deadline_ns=deadline_ns))
            except Exception as error:
                if is_past_the_end(error):
                    return b""
                raise

    def list(self, prefix: str, *, after: str = "", limit: int = 1000, deadline_ns: int) -> Sequence[ObjectInfo]:
        """Return up to ``limit`` objects. Each call lists all files below the last complete folder in ``prefix``."""
        folder = self._path(check_prefix(prefix).rpartition("/")[0])
        try:
            with self._errors(prefix):
                info_by_name = self._call("find", folder, detail=True, deadline_ns=deadline_ns)
        except ObjectNotFoundError:  # no such folder
            return ()
        root = f"{self._root()}/"
        infos = {
            self._key_at(name.removeprefix(root)): info for name, info in info_by_name.items() if name.startswith(root)
        }
        # The order by code point equals the order by UTF-8 byte.
        keys = sorted(key for key in infos if key > after and key.startswith(prefix))[:limit]
        return [_object_info(key, infos[key]) for key in keys]

    def delete(self, keys: Sequence[str], *, deadline_ns: int) -> Mapping[str, StoreError]:
        """Delete objects one by one, and return the errors by key."""
        self._refuse_write()
        failed = {}
        for key in keys:
            path = self._path(check_key(key))
            try:
                with self._errors(key):
                    self._call("rm_file", path, deadline_ns=deadline_ns)
            except ObjectNotFoundError:
                continue
            except StoreError as error:
                failed[key] = error
        return failed

    # --- the file system -----------------------------------------------------------------------------------------

    def _make(self) -> Any:
        from fsspec.core import url_to_fs  # noqa: PLC0415 - imports every protocol's registry

        scheme = self._location.scheme
        try:  # no local variable contains the options, because a traceback may show local variables
            filesystem, root = url_to_fs(self.uri, **{**self._options.reveal(), "skip_instance_cache": True})
        except ImportError as error:
            raise PluginImportError(f"no library for {scheme}:// is installed ({error})", "s3") from error
        except (TypeError, ValueError, KeyError) as error:
            text = self._options.redact(str(error))
            raise ConfigError(f"{scheme}:// refuses these options: {text}") from self._options.safe_cause(error)
        except Exception as error:  # noqa: BLE001 - some libraries connect here, and their errors have no common type
            self._raise(error, self.uri)
        filesystem.dircache.use_listings_cache = False  # as an option, SFTP would refuse it
        return filesystem, root.rstrip("/")

    def _root(self) -> str:
        root: str = self._filesystem()[1]
        return root

    def _path(self, key: str) -> str:
        place = place_of(key) if self._location.scheme in FILE_SCHEMES else key
        return f"{self._root()}/{place}" if place else self._root()

    def _key_at(self, place: str) -> str:
        return key_at(place) if self._location.scheme in FILE_SCHEMES else place

    def _writable(self, key: str) -> str:
        self._refuse_write()
        return self._path(check_key(key))

    def _call(self, name: str, path: str, *args: object, deadline_ns: int, **kwargs: object) -> Any:
        """Call the method ``name`` of the file system on another thread.

        Return its result if it ends before the deadline.

        If ``in_process`` is True, the call runs on this thread, and the deadline is checked only before the call.

        Raises:
            StoreTimeoutError: the deadline had passed before the call.
            TimeoutError: the call did not end before the deadline.
            Others: the errors of the file system.
        """
        timeout_s = seconds_left(self._clock, deadline_ns, path)
        filesystem = self._filesystem()[0]
        if self.in_process:
            return getattr(filesystem, name)(path, *args, **kwargs)
        if filesystem.async_impl:
            return run(filesystem.loop, lambda: getattr(filesystem, f"_{name}")(path, *args, **kwargs), timeout_s)
        return run(get_loop(), lambda: asyncio.to_thread(getattr(filesystem, name), path, *args, **kwargs), timeout_s)

    def _pipe(self, path: str, data: bytes, deadline_ns: int) -> None:
        """Write a file. If its folder is missing, create the folder: over SFTP, the file system does not do this."""
        try:
            self._call("pipe_file", path, data, deadline_ns=deadline_ns)
        except FileNotFoundError:
            if self._location.scheme not in FILE_SCHEMES:
                raise
            self._make_folder(path, deadline_ns)
            self._call("pipe_file", path, data, deadline_ns=deadline_ns)

    def _make_folder(self, path: str, deadline_ns: int) -> None:
        """Create the folder of a file if the folder is missing."""
        with self._folders:
            self._call("makedirs", path.rpartition("/")[0], exist_ok=True, deadline_ns=deadline_ns)

    def _put_spooled(self, path: str, source: ByteSource, key: str, deadline_ns: int) -> None:
        with tempfile.NamedTemporaryFile(prefix="stratalog-upload-") as spool:
            for chunk in counted_chunks(source, key):
                spool.write(chunk)
            spool.flush()
            if self._location.scheme in FILE_SCHEMES:  # put_file would create the folder without the lock
                self._make_folder(path, deadline_ns)
            self._call("put_file", spool.name, path, deadline_ns=deadline_ns)

    @contextlib.contextmanager
    def _discarding(self, path: str, key: str) -> Iterator[None]:
        """Return a context manager.

        If its block fails with an error that is not retriable, it deletes the partial object.
        """
        try:
            yield
        except BaseException as failed:
            if isinstance(failed, Exception) and self._convert_error(failed, key).retriable:
                raise
            try:
                self._call("rm_file", path, deadline_ns=self._clock.monotonic_ns() + _DISCARD_NS)
            except Exception as error:  # noqa: BLE001 - in most cases there is nothing to delete
                _LOGGER.debug("a failed upload could not be discarded path=%s error=%s", path, type(error).__name__)
            raise


def open_generic(context: OpenContext) -> ObjectStore:
    """Return a store on fsspec's file system for the URI's scheme. Only one writer may use the store.

    Raise ConfigError if the URI or an option is not allowed.
    """
    location, options = parse_location(context.location), read_options(context)
    return FsspecStore(location, options, context.env.clock, read_only=context.read_only)


def read_options(context: OpenContext) -> SecretOptions:
    """Return the options of a tier that uses a library other than s3fs.

    For each http:// endpoint on another machine, log a warning.

    Raises:
        ConfigError: TLS certificates would not be verified, or such an endpoint is used without ``allow_http``.
    """
    try:
        check_options(context.options)
        section = context.section if isinstance(context.section, TransportSection) else TransportSection()
        for url in endpoints(context.options):
            host = check_endpoint(url, allow_http=section.allow_http)
            if host:
                _LOGGER.warning(UNENCRYPTED, host, parse_location(context.location))
    except ConfigError as error:
        raise error.with_traceback(None)  # noqa: B904 - the same error, without the frames that hold the options
    return SecretOptions(context.options)


def _object_info(key: str, info: Mapping[str, Any]) -> ObjectInfo:
    etag = info.get("ETag") or info.get("etag") or ""
    return ObjectInfo(key, info.get("size") or 0, str(etag).strip('"'), _modified_ms(info))


def _modified_ms(info: Mapping[str, Any]) -> int:
    """Return the time (ms since 1970) at which an object was written; 0 if the file system does not report it.

    The name and the type of the value depend on the file system.
    """
    modified = next((info[name] for name in _TIME_FIELDS if info.get(name)), None)
    if isinstance(modified, str):
        try:
            modified = datetime.fromisoformat(modified)
        except ValueError:
            return 0
    if isinstance(modified, datetime):
        modified = modified.timestamp()
    return int(modified * 1000) if isinstance(modified, int | float) else 0
