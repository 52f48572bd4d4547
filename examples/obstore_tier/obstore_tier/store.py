"""Object store in which each method makes one call of obstore, on another thread, and waits until the deadline."""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, Final, NoReturn, TypeVar
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError
from obstore.store import S3Store

from obstore_tier.failures import is_past_the_end, may_have_been_applied, typed
from stratalog.errors import ClosedError, ConfigError, ReadOnlyError, StoreError, StoreTimeoutError
from stratalog.spi import Buffer, ByteSource, Capability, Clock, Created, ObjectInfo, ObjectStore, OpenContext

PART_BYTES: Final = 16 << 20
PARTS_AT_ONCE: Final = 4
_CHUNK_BYTES: Final = 1 << 20
_CALLS_AT_ONCE: Final = 32
_MAX_KEY_BYTES: Final = 1024
_OPTIONS: Final = {
    "key": "access_key_id",
    "secret": "secret_access_key",
    "token": "session_token",
    "endpoint_url": "endpoint",
    "region": "region",
}
_LOGGER: Final = logging.getLogger("obstore_tier")
_ALLOW_HTTP: Final = (
    "allow_http"  # option: accept http:// on another machine; obstore's own option of this name is set by this module
)
_TIMEOUT_S: Final = 60  # timeout of one request, which ends a request whose caller no longer waits
T = TypeVar("T")


class ObstoreStore(ObjectStore):
    """Store in a bucket, or below a prefix in the bucket. Keys are relative to the prefix, which obstore adds.

    Errors of obstore become StorageErrors, as ``failures.typed`` documents.
    """

    def __init__(self, uri: str, s3_store: S3Store, clock: Clock, *, read_only: bool) -> None:
        self._uri, self._s3_store, self._clock, self._read_only = uri, s3_store, clock, read_only
        self._pool = ThreadPoolExecutor(_CALLS_AT_ONCE, "obstore-tier")
        self._closed = False

    @property
    def capabilities(self) -> Capability:
        """``Capability.CREATE``, ``LIST_AFTER`` and ``BATCH_DELETE``."""
        return Capability.CREATE | Capability.LIST_AFTER | Capability.BATCH_DELETE

    @property
    def uri(self) -> str:
        """URI of the bucket and prefix, without credentials."""
        return self._uri

    def put_file(self, key: str, source: ByteSource, *, deadline_ns: int) -> ObjectInfo:
        """Upload an object of at most ``PART_BYTES`` in one request, and a larger one by a multipart upload.

        If the source fails, or has more or fewer bytes than announced, the library aborts the upload.
        """
        self._refuse_write()
        _check_key(key)

        def upload() -> Mapping[str, Any]:
            if source.size_bytes <= PART_BYTES:
                return obstore.put(self._s3_store, key, b"".join(_check_size(source, key)), use_multipart=False)
            return obstore.put(
                self._s3_store, key, _check_size(source, key), chunk_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE
            )

        answer = self._call(upload, key, deadline_ns)
        return ObjectInfo(key, source.size_bytes, (answer["e_tag"] or "").strip('"'))

    def create(self, key: str, data: Buffer, *, deadline_ns: int) -> Created:
        """Write the object only if the key does not exist.

        The result is ``Created.UNKNOWN`` if the request may have been carried out, but its reply was lost or came after
        the deadline.
        """
        self._refuse_write()
        _check_key(key)
        body = bytes(data)
        remaining_s = self._remaining_s(key, deadline_ns)
        future = self._pool.submit(obstore.put, self._s3_store, key, body, mode="create", use_multipart=False)
        try:
            future.result(remaining_s)
        except AlreadyExistsError:
            return Created.EXISTS
        except Exception as error:
            if future.cancel():  # the call had not begun
                raise StoreTimeoutError("no thread was free before the deadline", key) from error
            if may_have_been_applied(error):
                return Created.UNKNOWN
            self._raise(error, key)
        return Created.CREATED

    def read(self, key: str, start: int | None = None, end: int | None = None, *, deadline_ns: int) -> bytes:
        """Return bytes [start, end) of an object, in one GET.

        An empty range needs no request: the result is then b"" even if the object does not exist.
        """
        _check_key(key)
        first = start or 0
        if end is not None and end <= first:
            return b""

        def get() -> bytes:
            if start is None and end is None:
                return bytes(obstore.get(self._s3_store, key).bytes())
            byte_range: Any = {"offset": first} if end is None else (first, end)
            return bytes(obstore.get(self._s3_store, key, options={"range": byte_range}).bytes())

        try:
            return self._call(get, key, deadline_ns)
        except StoreError as error:
            if error.__cause__ is not None and is_past_the_end(Exception(str(error.__cause__))):
                return b""
            raise

    def list(self, prefix: str, *, after: str = "", limit: int = 1000, deadline_ns: int) -> Sequence[ObjectInfo]:
        """Return up to ``limit`` objects. The library lists whole folders: keys without ``prefix`` are skipped here."""
        if prefix:
            _check_prefix(prefix)
        folder = prefix.rpartition("/")[0]

        def list_objects() -> Sequence[ObjectInfo]:
            matching: list[ObjectInfo] = []
            offset = max(after, prefix[:-1] if prefix and not prefix.endswith("/") else "") or None
            for page in obstore.list(self._s3_store, folder or None, offset=offset, chunk_size=1000):
                infos = [_info(item) for item in page]
                matching += [info for info in infos if info.key.startswith(prefix) and info.key > after]
                if len(matching) >= limit or (
                    infos and infos[-1].key > prefix and not infos[-1].key.startswith(prefix)
                ):
                    break
            return sorted(matching, key=lambda info: info.key.encode())[:limit]

        return self._call(list_objects, prefix, deadline_ns)

    def delete(self, keys: Sequence[str], *, deadline_ns: int) -> Mapping[str, StoreError]:
        """Delete objects. The library reports only the first error, which is then returned for each of ``keys``."""
        self._refuse_write()
        checked_keys = [_check_key(key) for key in keys]
        if not checked_keys:
            return {}
        try:
            self._call(lambda: obstore.delete(self._s3_store, checked_keys), checked_keys[0], deadline_ns)
        except StoreError as error:
            return dict.fromkeys(checked_keys, error)
        return {}

    def close(self) -> None:
        """Make further calls raise ClosedError; running calls end by themselves. A second call does nothing."""
        self._closed = True
        self._pool.shutdown(wait=False)

    def __repr__(self) -> str:
        return f"ObstoreStore({self._uri!r})"

    def _call(self, call: Callable[[], T], key: str, deadline_ns: int) -> T:
        """Run a call on another thread, and stop waiting at the deadline; the call itself may continue.

        The library has timeouts for requests, but not for calls, which may send several requests.
        """
        remaining_s = self._remaining_s(key, deadline_ns)
        future = self._pool.submit(call)
        try:
            return future.result(remaining_s)
        except Exception as error:  # noqa: BLE001 - the library's errors have no common class
            future.cancel()
            self._raise(error, key)

    def _remaining_s(self, key: str, deadline_ns: int) -> float:
        if self._closed:
            raise ClosedError(f"the object store is closed uri={self._uri}")
        remaining_ns = deadline_ns - self._clock.monotonic_ns()
        if remaining_ns <= 0:
            raise StoreTimeoutError("the deadline has passed before the request", key)
        return remaining_ns / 1e9

    def _refuse_write(self) -> None:
        if self._read_only:
            raise ReadOnlyError("the object store was opened for reading", self._uri)

    def _raise(self, error: Exception, key: str) -> NoReturn:
        problem = typed(error, key, self._uri)
        if problem is error:
            raise error
        raise problem from error


def open_store(context: OpenContext) -> ObjectStore:
    """Return the store of the URI ``context.location``. No request is sent.

    Raises:
        ConfigError: the URI or an option is not allowed.
    """
    parts = urlsplit(context.location)
    if "@" in parts.netloc or not parts.netloc or parts.query or parts.fragment:
        raise ConfigError("an s3 URI is s3://bucket/prefix, without credentials")
    allowed = (*_OPTIONS, _ALLOW_HTTP)
    unknown = sorted(set(context.options) - set(allowed))
    if unknown:
        raise ConfigError(f"unknown tier option {unknown[0]!r}; the options are {', '.join(allowed)}")
    prefix = parts.path.strip("/")
    uri = f"s3://{parts.netloc}/{prefix}".rstrip("/")
    s3_store = _connect(parts.netloc, prefix, dict(context.options))
    return ObstoreStore(uri, s3_store, context.env.clock, read_only=context.read_only)


def _connect(bucket: str, prefix: str, options: dict[str, object]) -> S3Store:
    """Return the library's store, without retries.

    Raises:
        ConfigError: the endpoint is ``http://`` on another machine, and ``allow_http`` is not true.
    """
    is_allowed = str(options.pop(_ALLOW_HTTP, False)).lower() == "true"  # a command line gives text
    endpoint = str(options.get("endpoint_url") or "")
    is_unencrypted = endpoint.startswith("http://")
    host = urlsplit(endpoint).hostname or ""
    if is_unencrypted and not _is_loopback(host):
        if not is_allowed:
            raise ConfigError("the S3 endpoint is not encrypted: use https://, or the tier option allow_http=true")
        _LOGGER.warning("requests to http://%s are not encrypted; the network can read and change records", host)
    config: Any = {_OPTIONS[name]: value for name, value in {"region": "us-east-1", **options}.items()}
    return S3Store(
        bucket,
        prefix=prefix or None,
        config=config,
        client_options={"allow_http": is_unencrypted, "timeout": timedelta(seconds=_TIMEOUT_S)},
        retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=_TIMEOUT_S)},
    )


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_size(source: ByteSource, key: str) -> Iterator[bytes]:
    """Yield the chunks of a source; raise StoreError if it has more or fewer bytes than announced.

    The error aborts the upload, so no object becomes visible.
    """
    read_bytes = 0
    for chunk in source.chunks(_CHUNK_BYTES):
        read_bytes += len(chunk)
        if read_bytes > source.size_bytes:
            break
        yield bytes(chunk)
    if read_bytes != source.size_bytes:
        raise StoreError(f"the source announced {source.size_bytes} bytes, but had {read_bytes}", key)


def _check_key(key: str) -> str:
    """Return ``key``; raise ConfigError if it is invalid.

    Keys come from manifests, which an attacker may have written.
    """
    _check_prefix(key)
    if key.rpartition("/")[2] in {"", "."}:
        raise ConfigError(f"object key {key[:80]!r} is not allowed")
    return key


def _check_prefix(prefix: str) -> None:
    *folders, last = prefix.split("/")
    sound = prefix.isprintable() and len(prefix.encode()) <= _MAX_KEY_BYTES
    if not sound or last == ".." or not {"", ".", ".."}.isdisjoint(folders):
        raise ConfigError(f"object key {prefix[:80]!r} is not allowed")


def _info(item: Mapping[str, Any]) -> ObjectInfo:
    modified_ms = int(item["last_modified"].timestamp() * 1000)
    return ObjectInfo(item["path"], item["size"], (item["e_tag"] or "").strip('"'), modified_ms)
