"""Object store in a SQLite file.

An object is a row of the table ``objects``; its bytes are rows of the table ``parts``. The transaction that inserts the
row into ``objects`` makes the object visible.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Final
from urllib.parse import quote, urlsplit

from stratalog.errors import ClosedError, ConfigError, ObjectNotFoundError, ReadOnlyError, StoreError, StoreTimeoutError
from stratalog.spi import (
    Buffer,
    ByteSource,
    BytesSource,
    Capability,
    Clock,
    Created,
    ObjectInfo,
    ObjectStore,
    OpenContext,
    UnfinishedUpload,
)

PART_BYTES: Final = 1 << 20
_MAX_KEY_BYTES: Final = 1024
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS uploads (upload INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL, begun_ms INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS parts (
    upload INTEGER NOT NULL, number INTEGER NOT NULL, data BLOB NOT NULL, PRIMARY KEY (upload, number)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS objects (
    key TEXT PRIMARY KEY, upload INTEGER NOT NULL, size_bytes INTEGER NOT NULL, modified_ms INTEGER NOT NULL
) WITHOUT ROWID;
"""


class SqliteStore(ObjectStore):
    """Store in one SQLite file. Errors of SQLite become StoreErrors.

    The file is created if it is missing, unless the store is opened only for reading: then this is a StoreError.

    All threads share one connection; a lock admits one transaction at a time.
    """

    def __init__(self, path: str, clock: Clock, *, read_only: bool) -> None:
        self._path, self._clock, self._read_only = path, clock, read_only
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        try:
            uri = f"file:{quote(path)}?mode={'ro' if read_only else 'rwc'}"
            self._connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
            if not read_only:
                self._connection.executescript(f"PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; {_TABLES}")
        except sqlite3.Error as error:
            raise StoreError(f"the database cannot be opened: {error}", path) from error

    @property
    def capabilities(self) -> Capability:
        """``Capability.CREATE`` (in a transaction), ``LIST_AFTER`` (by the index of keys) and ``BATCH_DELETE``."""
        return Capability.CREATE | Capability.LIST_AFTER | Capability.BATCH_DELETE

    @property
    def uri(self) -> str:
        """URI of the file."""
        return f"sqlite://{self._path}"

    def put_file(self, key: str, source: ByteSource, *, deadline_ns: int) -> ObjectInfo:
        """Write each part in a transaction of its own, then make the object visible.

        Other calls can run between the transactions.
        """
        upload = self._upload_parts(key, source, deadline_ns)
        with self._transaction(key, deadline_ns) as connection:
            self._name_object(connection, key, upload, source.size_bytes)
        return ObjectInfo(key, source.size_bytes)

    def create(self, key: str, data: Buffer, *, deadline_ns: int) -> Created:
        """Write the object only if the key does not exist, in one transaction.

        The result is ``Created.CREATED`` or ``Created.EXISTS``.
        """
        source = BytesSource(data)
        self._check(key, writes=True)
        with self._transaction(key, deadline_ns) as connection:
            if connection.execute("SELECT 1 FROM objects WHERE key = ?", (key,)).fetchone():
                return Created.EXISTS
            upload = self._begin_upload(connection, key)
            for number, part in enumerate(_parts(source, key)):
                connection.execute("INSERT INTO parts VALUES (?, ?, ?)", (upload, number, part))
            self._name_object(connection, key, upload, source.size_bytes)
        return Created.CREATED

    def read(self, key: str, start: int | None = None, end: int | None = None, *, deadline_ns: int) -> bytes:
        """Return bytes [start, end) of an object; only the parts that contain them are read."""
        self._check(key)
        with self._transaction(key, deadline_ns) as connection:
            row = connection.execute("SELECT upload, size_bytes FROM objects WHERE key = ?", (key,)).fetchone()
            if row is None:
                raise ObjectNotFoundError("no such object", key)
            upload, size_bytes = row
            first, last = start or 0, size_bytes if end is None else min(end, size_bytes)
            if last <= first:
                return b""
            numbers = (upload, first // PART_BYTES, (last - 1) // PART_BYTES)
            rows = connection.execute(
                "SELECT data FROM parts WHERE upload = ? AND number BETWEEN ? AND ? ORDER BY number", numbers
            )
            data = b"".join(row[0] for row in rows) if size_bytes > PART_BYTES else next(rows)[0]
        position = first - first // PART_BYTES * PART_BYTES if size_bytes > PART_BYTES else first
        return bytes(data[position : position + last - first])

    def list(self, prefix: str, *, after: str = "", limit: int = 1000, deadline_ns: int) -> Sequence[ObjectInfo]:
        """Return up to ``limit`` objects in the order of the keys' UTF-8 bytes, by which SQLite compares text."""
        self._check(prefix, is_prefix=True)
        with self._transaction(prefix, deadline_ns) as connection:
            rows = connection.execute(
                "SELECT key, size_bytes, modified_ms FROM objects WHERE key > ? AND key >= ? ORDER BY key",
                (after, prefix),
            )
            infos = list[ObjectInfo]()
            for key, size_bytes, modified_ms in rows:
                if len(infos) == limit or not key.startswith(prefix):
                    break
                infos.append(ObjectInfo(key, size_bytes, modified_ms=modified_ms))
        return infos

    def delete(self, keys: Sequence[str], *, deadline_ns: int) -> Mapping[str, StoreError]:
        """Delete the objects and their parts in one transaction, and return {}.

        If an error is raised, no object was deleted.
        """
        for key in keys:
            self._check(key, writes=True)
        with self._transaction(keys[0] if keys else "", deadline_ns) as connection:
            for key in keys:
                self._forget(connection, "SELECT upload FROM objects WHERE key = ?", key)
                connection.execute("DELETE FROM objects WHERE key = ?", (key,))
        return {}

    def unfinished(self, prefix: str, *, deadline_ns: int) -> Sequence[UnfinishedUpload]:
        """Return the uploads with this prefix to which no object refers, including uploads in progress."""
        with self._transaction(prefix, deadline_ns) as connection:
            rows = connection.execute(
                "SELECT key, upload, begun_ms FROM uploads WHERE upload NOT IN (SELECT upload FROM objects)"
            ).fetchall()
        return [
            UnfinishedUpload(key, str(upload), begun_ms) for key, upload, begun_ms in rows if key.startswith(prefix)
        ]

    def abort(self, upload: UnfinishedUpload, *, deadline_ns: int) -> None:
        """Delete an upload unless an object refers to it. The ``put_file`` that started it then raises StoreError."""
        self._check(upload.key, writes=True)
        with self._transaction(upload.key, deadline_ns) as connection:
            self._forget(
                connection,
                "SELECT upload FROM uploads WHERE upload = ? AND upload NOT IN (SELECT upload FROM objects)",
                upload.upload_id,
            )

    def close(self) -> None:
        """Close the connection. A second call does nothing."""
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # --- transactions ----------------------------------------------------------------------------------------------

    @contextmanager
    def _transaction(self, key: str, deadline_ns: int) -> Iterator[sqlite3.Connection]:
        """Run the block in a transaction, which an error rolls back. Errors of SQLite become StoreErrors.

        Raises:
            StoreTimeoutError: the transaction could not begin before the deadline.
            ClosedError: the store is closed.
        """
        left_ms = (deadline_ns - self._clock.monotonic_ns()) // 1_000_000
        if left_ms <= 0:
            raise StoreTimeoutError("the deadline has passed before the call", key)
        if not self._lock.acquire(timeout=left_ms / 1000):
            raise StoreTimeoutError("the database was busy until the deadline", key)
        try:
            if self._connection is None:
                raise ClosedError(f"the object store is closed uri={self.uri}")
            connection = self._connection
            connection.execute(f"PRAGMA busy_timeout = {left_ms:d}")
            connection.execute("BEGIN" if self._read_only else "BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                connection.rollback()
                raise
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                raise StoreTimeoutError("another process used the database until the deadline", key) from error
            raise StoreError(f"SQLite failed: {error}", key) from error
        except sqlite3.Error as error:
            raise StoreError(f"SQLite failed: {error}", key) from error
        finally:
            self._lock.release()

    def _upload_parts(self, key: str, source: ByteSource, deadline_ns: int) -> int:
        """Write the parts of a new upload, and return its number.

        If an error occurs before the deadline, the parts are deleted; after the deadline, ``unfinished`` returns the
        upload.
        """
        self._check(key, writes=True)
        with self._transaction(key, deadline_ns) as connection:
            upload = self._begin_upload(connection, key)
        try:
            for number, part in enumerate(_parts(source, key)):
                with self._transaction(key, deadline_ns) as connection:
                    connection.execute("INSERT INTO parts VALUES (?, ?, ?)", (upload, number, part))
        except BaseException:
            with suppress(StoreError):  # after the deadline
                self.abort(UnfinishedUpload(key, str(upload)), deadline_ns=deadline_ns)
            raise
        return upload

    def _begin_upload(self, connection: sqlite3.Connection, key: str) -> int:
        cursor = connection.execute("INSERT INTO uploads (key, begun_ms) VALUES (?, ?)", (key, self._clock.now_ms()))
        return int(cursor.lastrowid or 0)

    def _name_object(self, connection: sqlite3.Connection, key: str, upload: int, size_bytes: int) -> None:
        """Let the object ``key`` refer to an upload; delete the upload to which the object referred before.

        Raises:
            StoreError: the upload was aborted.
        """
        if not connection.execute("SELECT 1 FROM uploads WHERE upload = ?", (upload,)).fetchone():
            raise StoreError("the upload was aborted", key)
        self._forget(connection, "SELECT upload FROM objects WHERE key = ?", key)
        row = (key, upload, size_bytes, self._clock.now_ms())
        connection.execute("INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?)", row)

    @staticmethod
    def _forget(connection: sqlite3.Connection, query: str, argument: str) -> None:
        """Delete the uploads that ``query`` returns, with their parts."""
        for (upload,) in connection.execute(query, (argument,)).fetchall():
            connection.execute("DELETE FROM parts WHERE upload = ?", (upload,))
            connection.execute("DELETE FROM uploads WHERE upload = ?", (upload,))

    def _check(self, key: str, *, is_prefix: bool = False, writes: bool = False) -> None:
        """Raise ReadOnlyError if a write is not allowed, and ConfigError for an invalid key.

        Keys come from manifests, which an attacker may have written.
        """
        if writes and self._read_only:
            raise ReadOnlyError("the object store was opened for reading", self.uri)
        *folders, last = key.split("/")
        is_sound = key.isprintable() and len(key.encode()) <= _MAX_KEY_BYTES and {"", ".", ".."}.isdisjoint(folders)
        if not is_sound or last in {".", ".."} or (not last and not is_prefix):
            raise ConfigError(f"object key {key[:80]!r} is not allowed")


def _parts(source: ByteSource, key: str) -> Iterator[bytes]:
    """Yield the bytes of a source in parts of ``PART_BYTES``; the last part may be smaller.

    Raises:
        StoreError: the source returned more or fewer bytes than announced.
    """
    pending, read_bytes = bytearray(), 0
    for chunk in source.chunks(PART_BYTES):
        read_bytes += len(chunk)
        if read_bytes > source.size_bytes:
            break
        pending += chunk
        while len(pending) >= PART_BYTES:
            yield bytes(pending[:PART_BYTES])
            del pending[:PART_BYTES]
    if read_bytes != source.size_bytes:
        raise StoreError(f"the source announced {source.size_bytes} bytes, but had {read_bytes}", key)
    if pending or not read_bytes:
        yield bytes(pending)


def open_store(context: OpenContext) -> ObjectStore:
    """Open the store whose URI is ``context.location``.

    Raises:
        ConfigError: the URI has more than a path, or an option is given.
        StoreError: the database cannot be opened.
    """
    uri = urlsplit(context.location)
    if uri.netloc or uri.query or uri.fragment or not uri.path.strip("/"):
        raise ConfigError("the URI of a SQLite file is sqlite:///PATH")
    if context.options:
        raise ConfigError(f"unknown tier option {min(context.options)!r}; this store has no options")
    return SqliteStore(uri.path, context.env.clock, read_only=context.read_only)
