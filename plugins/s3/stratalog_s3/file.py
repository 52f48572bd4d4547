"""Objects as files in a folder.

A file is written under a temporary name, synced, and then linked or renamed to its final name. All access uses
``env.files``. It creates files that only the owner can read, and follows no symbolic links.
"""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, NoReturn

from stratalog.errors import (
    BucketNotFoundError,
    ClosedError,
    ConfigError,
    ObjectNotFoundError,
    ReadOnlyError,
    StoreError,
    StorePermissionError,
)
from stratalog.spi import (
    Buffer,
    ByteSource,
    Capability,
    Created,
    Env,
    FileStat,
    ObjectInfo,
    ObjectStore,
    OpenContext,
    UnfinishedUpload,
)
from stratalog_s3.deadline import passed_deadline
from stratalog_s3.failures import convert_error
from stratalog_s3.location import MAX_NAME_BYTES, Location, check_key, check_prefix, key_at, parse_location, place_of
from stratalog_s3.secret import SecretOptions
from stratalog_s3.uploads import counted_chunks

STALE_MS: Final = 86_400_000  # if a temporary file is older, its writer has died
_MOST_FOLDERS: Final = 16_384
_TEMPORARY_PREFIX: Final = ".stratalog-"
_TEMPORARY_NAME: Final = re.compile(r"\.stratalog-[0-9a-f]{32}-(.+)\.tmp\Z")  # group 1: name of the final file
_LONGEST_NAME: Final = 150  # in bytes; a temporary name has at most 255 bytes, so it cannot contain a longer name
_MISSING_ERRNOS: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR})


class FileStore(ObjectStore):
    """Object store in one folder, which must exist."""

    def __init__(self, location: Location, env: Env, *, read_only: bool) -> None:
        self._location, self._read_only, self._closed = location, read_only, False
        self._root = f"/{location.prefix}"
        self._files, self._clock, self._chance = env.files, env.clock, env.chance
        self._swept: dict[str, int] = {}  # time (ms) of the last removal of stale temporary files, by folder

    @property
    def capabilities(self) -> Capability:
        """Only ``Capability.CREATE`` and ``NEAR``, because listings read whole folders, and there are no checksums."""
        return Capability.CREATE | Capability.NEAR

    @property
    def uri(self) -> str:
        """URI of the folder."""
        return str(self._location)

    def put_file(self, key: str, source: ByteSource, *, deadline_ns: int) -> ObjectInfo:
        """Write and sync a temporary file, rename it to its final name, and sync the folder. Durable on return."""
        path = self._writable(key, deadline_ns)
        try:
            temporary = self._write_temporary(path, self._read_chunks(source, key, deadline_ns))
            try:
                self._files.rename(temporary, path)
            except OSError:
                self._remove_if_there(temporary)
                raise
            self._files.sync_folder(_folder(path))
        except OSError as error:
            self._raise(error, key)
        return ObjectInfo(key, source.size_bytes)

    def create(self, key: str, data: Buffer, *, deadline_ns: int) -> Created:
        """Write and sync a temporary file, and link it to its final name. The link fails if the name exists.

        The result is ``Created.UNKNOWN`` if the link succeeded, but the sync of the folder or the removal of the
        temporary file failed. The name of the object may then be lost in a crash.
        """
        path = self._writable(key, deadline_ns)
        try:
            if self._files.stat(path) is not None:
                return Created.EXISTS  # a quick check, without a temporary file; in other cases the link decides
            temporary = self._write_temporary(path, [data])
            created = self._link(temporary, path)
        except OSError as error:
            self._raise(error, key)
        try:
            self._files.remove(temporary)
            self._files.sync_folder(_folder(path))
        except OSError:
            return Created.UNKNOWN if created is Created.CREATED else created
        return created

    def read(self, key: str, start: int | None = None, end: int | None = None, *, deadline_ns: int) -> bytes:
        """Return the bytes [start, end) of an object. The defaults are the start and the end of the object."""
        path = self._path(check_key(key), deadline_ns)
        try:
            with self._open(path) as descriptor:
                first, last = start or 0, self._files.size_bytes(descriptor)
                size_bytes = (last if end is None else min(end, last)) - first
                return self._files.read(descriptor, first, size_bytes) if size_bytes > 0 else b""
        except OSError as error:
            self._raise(error, key)

    def is_cached(self, key: str, start: int, end: int) -> bool:
        """Return True if the page cache contains the byte before ``end``. Earlier bytes are assumed to be cached."""
        del start
        with (
            contextlib.suppress(OSError, ConfigError),
            self._open(f"{self._root}/{place_of(check_key(key))}") as descriptor,
        ):
            return self._files.is_cached(descriptor, end - 1)
        return False

    def read_cached(self, key: str, start: int, into: memoryview) -> bool:
        """Fill ``into`` from the page cache, and return True.

        Return False if some bytes are not cached or do not exist.
        """
        if self._closed:
            return False
        try:
            descriptor = self._files.open(f"{self._root}/{place_of(check_key(key))}")
        except (OSError, ConfigError):
            return False
        try:
            return self._files.read_cached(descriptor, start, into)
        finally:
            self._files.close(descriptor)

    def list(self, prefix: str, *, after: str = "", limit: int = 1000, deadline_ns: int) -> Sequence[ObjectInfo]:
        """Return up to ``limit`` objects. The method reads only folders that can contain these objects."""
        folder = check_prefix(prefix).rpartition("/")[0]
        self._path(folder, deadline_ns)
        try:
            objects = [*islice(self._walk(place_of(folder), prefix, after), limit)]
        except OSError as error:
            self._raise(error, prefix)
        if not objects:
            self._check_root()
        return objects

    def delete(self, keys: Sequence[str], *, deadline_ns: int) -> Mapping[str, StoreError]:
        """Delete the files of objects, but no folders, and return the errors by key.

        The deletion is not synced. After a power loss, a deleted file may exist again. Garbage collection then deletes
        it again.
        """
        failed: dict[str, StoreError] = {}
        for key in keys:
            path = self._writable(key, deadline_ns, make_folder=False)
            try:
                self._files.remove(path)
            except OSError as error:
                if error.errno not in _MISSING_ERRNOS:
                    failed[key] = self._store_error(error, key)
        return failed

    def unfinished(self, prefix: str, *, deadline_ns: int) -> Sequence[UnfinishedUpload]:
        """Return the temporary files. Their writers are in progress or have died.

        If the file name of an object is longer than 150 bytes, its temporary file is omitted, because it does not
        contain the name.
        """
        folder = check_prefix(prefix).rpartition("/")[0]
        self._path(folder, deadline_ns)
        uploads: list[UnfinishedUpload] = []
        try:
            for place, entry in self._entries(place_of(folder)):
                parent, _, name = place.rpartition("/")
                match = _TEMPORARY_NAME.match(name)
                if match is not None and (key := key_at(f"{parent}/{match[1]}".removeprefix("/"))).startswith(prefix):
                    uploads.append(UnfinishedUpload(key, name, entry.modified_ms))
        except OSError as error:
            self._raise(error, prefix)
        return uploads

    def abort(self, upload: UnfinishedUpload, *, deadline_ns: int) -> None:
        """Remove a temporary file. If a writer still uses the file, the upload of the writer fails."""
        path = self._writable(upload.key, deadline_ns, make_folder=False)
        folder, _, name = path.rpartition("/")
        match = _TEMPORARY_NAME.match(upload.upload_id)
        if match is None or match[1] != name:
            return  # no upload of this key has such an id
        try:
            self._remove_if_there(f"{folder}/{upload.upload_id}")
        except OSError as error:
            self._raise(error, upload.key)

    def close(self) -> None:
        """Make all later reads, writes and listings raise ClosedError. Idempotent."""
        self._closed = True

    def __repr__(self) -> str:
        return f"FileStore({self.uri!r})"

    # --- names ---------------------------------------------------------------------------------------------------

    def _path(self, key: str, deadline_ns: int) -> str:
        if self._closed:
            raise ClosedError(f"the object store is closed uri={self.uri}")
        self._check_deadline(deadline_ns, key)
        return f"{self._root}/{place_of(key)}" if key else self._root

    def _check_deadline(self, deadline_ns: int, key: str) -> None:
        if self._clock.monotonic_ns() >= deadline_ns:
            raise passed_deadline(key)

    def _writable(self, key: str, deadline_ns: int, *, make_folder: bool = True) -> str:
        if self._read_only:
            raise ReadOnlyError("the object store was opened for reading", self.uri)
        path = self._path(check_key(key), deadline_ns)
        if path.rpartition("/")[2].startswith(_TEMPORARY_PREFIX):
            raise ConfigError(f"object key {key!r} is not allowed: files of this name are temporary")
        if make_folder:
            self._check_root()
            try:
                self._prepare(_folder(path))
            except OSError as error:
                self._raise(error, key)
        return path

    def _check_root(self) -> None:
        try:
            info = self._files.stat(self._root)
        except OSError as error:
            raise self._store_error(error, self.uri) from error
        if info is None or not info.is_folder:
            problem = "the folder of the store is missing" if info is None else "the store is a file, not a folder"
            raise BucketNotFoundError(problem, self.uri)

    def _prepare(self, folder: str) -> None:
        """Create a folder and its missing parents below the root, make their names durable, and remove stale files.

        A folder for which this was done less than a day ago is left as it is.
        """
        now_ms, swept_ms = self._clock.now_ms(), self._swept.get(folder)
        is_recent = swept_ms is not None and now_ms - swept_ms < STALE_MS
        if is_recent and self._files.stat(folder) is not None:  # another program may have removed it
            return
        path = self._root
        for part in folder.removeprefix(self._root).strip("/").split("/"):
            parent, path = path, f"{path}/{part}" if part else path
            if self._files.stat(path) is None:
                with contextlib.suppress(FileExistsError):  # another writer has created it meanwhile
                    self._files.make_folder(path)
            self._files.sync_folder(parent)  # even if the folder exists: its creator may not have synced it yet
        self._sweep(folder)
        if len(self._swept) >= _MOST_FOLDERS:  # most of them may belong to deleted topics
            self._swept.clear()
        self._swept[folder] = now_ms

    def _sweep(self, folder: str) -> None:
        """Remove temporary files that are older than a day, because their writers have died."""
        oldest_ms = self._clock.now_ms() - STALE_MS
        for entry in self._files.list(folder):
            if entry.name.startswith(_TEMPORARY_PREFIX) and entry.modified_ms < oldest_ms:
                self._remove_if_there(f"{folder}/{entry.name}")

    # --- files ---------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _open(self, path: str) -> Iterator[int]:
        descriptor = self._files.open(path)
        try:
            yield descriptor
        finally:
            self._files.close(descriptor)

    def _write_temporary(self, path: str, chunks: Iterable[Buffer]) -> str:
        """Write and sync a temporary file in the folder of ``path``, and return its path. After an error, remove it."""
        folder, _, name = path.rpartition("/")
        suffix = f"-{name}" if len(name.encode()) <= _LONGEST_NAME else ""
        temporary = f"{folder}/{_TEMPORARY_PREFIX}{self._chance.getrandbits(128):032x}{suffix}.tmp"
        descriptor = self._files.open(temporary, create=True)
        try:
            try:
                position = 0
                for chunk in chunks:
                    written_bytes = self._files.write(descriptor, position, chunk)
                    if written_bytes < len(chunk):
                        raise OSError(errno.ENOSPC, "no space left")
                    position += written_bytes
                self._files.sync(descriptor)
            finally:
                self._files.close(descriptor)
        except BaseException:
            self._remove_if_there(temporary)
            raise
        return temporary

    def _link(self, temporary: str, path: str) -> Created:
        try:
            self._files.link(temporary, path)
        except FileExistsError:
            return Created.EXISTS
        except BaseException:
            self._remove_if_there(temporary)
            raise
        return Created.CREATED

    def _remove_if_there(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._files.remove(path)

    def _read_chunks(self, source: ByteSource, key: str, deadline_ns: int) -> Iterator[Buffer]:
        for chunk in counted_chunks(source, key):
            self._check_deadline(deadline_ns, key)
            yield chunk

    def _walk(self, folder: str, prefix: str, after: str) -> Iterator[ObjectInfo]:
        """Yield the objects below a folder whose keys start with ``prefix`` and are above ``after``, in key order.

        A folder can be the first part of a split name (see ``place_of``). The keys in such a folder can be below and
        above the key of a file beside it. Therefore, if ``folder`` contains such a folder, all objects below ``folder``
        are sorted together.
        """
        # without a start, each commit to a log would read the attributes of all roots of the log
        folder_key, bound = key_at(f"{folder}/") if folder else "", max(prefix, after)
        is_inside = bound.startswith(folder_key) and len(bound) < MAX_NAME_BYTES  # a longer name may be split
        start = bound.removeprefix(folder_key).partition("/")[0] if is_inside else ""
        entries = sorted(
            (key_at(f"{place}/" if entry.is_folder else place), place, entry)
            for place, entry in self._list_folder(folder, start)
        )
        objects = (info for key, place, entry in entries for info in self._walk_entry(key, place, entry, prefix, after))
        is_ordered = all(key.endswith("/") or not entry.is_folder for key, _, entry in entries)
        yield from objects if is_ordered else sorted(objects, key=lambda info: info.key)

    def _walk_entry(self, key: str, place: str, entry: FileStat, prefix: str, after: str) -> Iterator[ObjectInfo]:
        """Yield the objects of one file or folder that match ``prefix`` and ``after``.

        All their keys start with ``key``.
        """
        if entry.is_folder:
            is_wanted = key.startswith(prefix) or prefix.startswith(key)
            if is_wanted and (key > after or after.startswith(key)):
                yield from self._walk(place, prefix, after)
        elif key.startswith(prefix) and key > after and not entry.name.startswith(_TEMPORARY_PREFIX):
            yield ObjectInfo(key, entry.size_bytes, "", entry.modified_ms)

    def _entries(self, folder: str) -> Iterator[tuple[str, FileStat]]:
        """Yield all files below a folder, with paths relative to the root."""
        for place, entry in self._list_folder(folder):
            if entry.is_folder:
                yield from self._entries(place)
            else:
                yield place, entry

    def _list_folder(self, folder: str, start: str = "") -> Iterator[tuple[str, FileStat]]:
        """Yield the files and folders in a folder, with paths relative to the root, as ``Vfs.list`` does.

        If the folder is missing, yield nothing.
        """
        try:
            entries = self._files.list(f"{self._root}/{folder}" if folder else self._root, start)
        except OSError as error:
            if error.errno in _MISSING_ERRNOS:
                return
            raise
        for entry in entries:
            yield f"{folder}/{entry.name}" if folder else entry.name, entry

    def _store_error(self, error: OSError, key: str) -> StoreError:
        if error.errno in _MISSING_ERRNOS:
            return ObjectNotFoundError("no such object", key)
        if isinstance(error, PermissionError):
            advice = f"give this user read and write access to the folder {self._root}"
            return StorePermissionError("permission denied", key or self.uri).advised(advice)
        if error.errno == errno.EROFS:
            advice = f"make the file system of the folder {self._root} writable"
            return StorePermissionError("read-only file system", key or self.uri).advised(advice)
        problem = convert_error(error, key, self.uri, SecretOptions({}))
        return problem if isinstance(problem, StoreError) else StoreError(str(problem), key)

    def _raise(self, error: OSError, key: str) -> NoReturn:
        if error.errno in _MISSING_ERRNOS:
            self._check_root()
        raise self._store_error(error, key) from error


def open_file(context: OpenContext) -> ObjectStore:
    """Return a store on the folder that the URI names. Raise ConfigError if the URI is not allowed."""
    return FileStore(parse_location(context.location), context.env, read_only=context.read_only)


def _folder(path: str) -> str:
    return path.rpartition("/")[0]
