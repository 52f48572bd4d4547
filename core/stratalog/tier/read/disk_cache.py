"""Disk cache of limited size for bytes that were read from a tier. A restart does not delete the cache.

An item is the bytes of one chunk or index, in one file. A group is all items of one object. Nothing is synced: a
checksum detects items that a crash has damaged. ``docs/formats/tier-cache.md`` describes the bytes.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import logging
import re
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from crc32c import crc32c

from stratalog.env import Env, Vfs
from stratalog.env.cache import CacheMetrics, TwoQueues
from stratalog.env.forks import ends_with_fork
from stratalog.env.handles import HandlePool
from stratalog.errors import ClosedError
from stratalog.errors.system import TRANSIENT_ERRNOS
from stratalog.model.batches import Buffer

_LOGGER: Final = logging.getLogger(__name__)
_MAGIC: Final = b"STLGCCH1"
_HEAD: Final = struct.Struct(">8sIIQ")  # magic, CRC-32C of key and data, size of the key, size of the data
_TEMPORARY_SUFFIX: Final = ".tmp"
_GROUP_DIGITS: Final = 24
_ITEM_DIGITS: Final = 16
_PAUSE_NS: Final = 60_000_000_000  # no writes for this time after a failed write
_CHECK_VALID_NS: Final = 3_600_000_000_000  # after this time a whole file is checked again before parts of it are read
_FILE_NAME: Final = re.compile(f"[0-9a-f]{{{_GROUP_DIGITS}}}-[0-9a-f]{{{_ITEM_DIGITS}}}")
_MAX_KEY_BYTES: Final = 1 << 16  # far more than the length of any URI and key
_PIECE_BYTES: Final = 1 << 20
_LOCK_FILE: Final = ".lock"
_OPEN_FILES: Final = 16  # kept open for ``read_part``: there are few readers, and each reads one file for long


class _Check(NamedTuple):
    """The time when a whole file was last found undamaged, and the stamp (``Vfs.stamp``) that identifies the file."""

    when_ns: int
    stamp: tuple[int, ...]


class CachedItem(NamedTuple):
    """The group and name of the item in a cache file, and the position and size (bytes) of its data in the file."""

    group: str
    item: str
    position: int
    size_bytes: int


class DiskCache:
    """A cache of byte strings, each in a file of one folder. Thread-safe. A disk error counts as a miss.

    Args:
        folder: path of the folder; created if it is missing. Only this cache may put files into it.
        limit_bytes: largest total size of the files.
        env: files and clock.
    """

    def __init__(self, folder: str, limit_bytes: int, env: Env) -> None:
        self._folder, self._files, self._clock = folder, env.files, env.clock
        self._order = TwoQueues(limit_bytes)  # by file name; under _lock, as are all changes of the folder
        self._lock = threading.Lock()
        self._hits = self._misses = self._temporaries = 0  # under _lock
        self._silent_until_ns = 0  # under _lock
        self._checks: dict[str, _Check] = {}  # files found undamaged, by name; under _lock
        self._refused = set[str]()  # prefixes of the file names of groups that are not cached again; under _lock
        self._handles = HandlePool(env.files, _OPEN_FILES)
        ends_with_fork(self)
        self._load()

    def get(self, group: str, item: str) -> bytes | None:
        """Return the bytes of an item; None if it is not cached, or if its file is damaged. Delete a damaged file."""
        name, key = _file_name(group, item), _key(group, item)
        checked_data = None
        with self._lock:
            is_listed = name in self._order
        if is_listed:
            try:
                checked_data = self._read(name, key)
            except OSError as error:
                is_listed = error.errno not in TRANSIENT_ERRNOS  # after a transient error the file may be undamaged
        with self._lock:
            if checked_data is not None:
                self._hits += 1
                if name in self._order:
                    self._order.touch(name)
                    self._checks[name] = checked_data[1]
                return checked_data[0]
            self._misses += 1
            if is_listed:
                self._forget([name])
        return None

    def read_part(self, group: str, item: str, start: int, buffer: memoryview) -> bool:
        """Fill ``buffer`` with an item's bytes from ``start`` on, without a check; the caller must check the bytes.

        Return False if the item is not cached or has too few bytes, after a disk error, or if ``get`` did not check the
        whole file within the last hour. The contents of ``buffer`` are then undefined.
        """
        name, begin = _place(group, item)
        stamp = self._stamp_of(name)
        if not stamp:
            return False
        opener = functools.partial(self._files.open, f"{self._folder}/{name}")
        with contextlib.suppress(OSError, ClosedError), self._handles.using(name, opener) as descriptor:
            if self._files.stamp(descriptor) == stamp:
                return self._files.read_into(descriptor, begin + start, buffer) == len(buffer)
            self._handles.drop(name)  # another file may have this name now
        return False

    def is_cached(self, group: str, item: str) -> bool:
        """Return True if ``get`` has returned the item, and its file is probably in the system's page cache."""
        name = _file_name(group, item)
        with self._lock:
            if name not in self._checks:
                return False
        with contextlib.suppress(OSError), self._open_file(name) as descriptor:
            return self._files.is_cached(descriptor, self._files.size_bytes(descriptor) - 1)
        return False

    def has(self, group: str, item: str) -> bool:
        """Return True if there is a file for the item, which may be damaged. The call does not affect eviction."""
        with self._lock:
            return _file_name(group, item) in self._order

    def put(self, group: str, item: str, data: Buffer) -> None:
        """Write an item to the cache, unless the cache has or refuses the item; evict other items if the cache is full.

        Disk errors are not raised. After a disk error, ``put`` logs a warning and writes nothing for a minute.
        """
        name, key = _file_name(group, item), _key(group, item)
        with self._lock:
            if self._is_unwanted(name) or self._clock.monotonic_ns() < self._silent_until_ns:
                return
            self._temporaries += 1
            temporary = f"{self._folder}/{name}-{self._temporaries}{_TEMPORARY_SUFFIX}"
        head = _HEAD.pack(_MAGIC, crc32c(data, crc32c(key)), len(key), len(data))
        try:
            _write(self._files, temporary, [head, key, memoryview(data)])
            self._keep(name, temporary, len(head) + len(key) + len(data))
        except OSError as error:
            self._handle_failure(temporary, error)

    def drop(self, group: str, *, refuse: bool = False) -> None:
        """Delete all items of a group. With ``refuse``, ``put`` writes no item of the group until the process ends."""
        prefix = _group_prefix(group)
        with self._lock:
            if refuse:
                self._refused.add(prefix)
            self._forget([str(name) for name in self._order.keys() if str(name).startswith(prefix)])  # noqa: SIM118 - no mapping

    def close(self) -> None:
        """Close the open files; ``read_part`` then returns False. A second call does nothing."""
        self._handles.close()

    def metrics(self) -> CacheMetrics:
        """Return the current size and number of items, and the hits and misses so far."""
        with self._lock:
            return CacheMetrics(self._order.size_bytes, len(self._order), self._hits, self._misses)

    def _load(self) -> None:
        """Add the files that an earlier process left; a file is checked only when it is requested."""
        if self._files.stat(self._folder) is None:
            self._files.make_folder(self._folder)
        for info in sorted(self._files.list(self._folder), key=lambda info: info.modified_ms):
            if info.name.endswith(_TEMPORARY_SUFFIX):
                self._remove(info.name)
            elif not info.is_folder:
                for evicted in self._order.add(info.name, info.size_bytes):
                    self._remove(str(evicted))

    def _read(self, name: str, key: bytes) -> tuple[bytes, _Check] | None:
        with self._open_file(name) as descriptor:
            checked = _Check(self._clock.monotonic_ns(), self._files.stamp(descriptor))
            size_bytes = self._files.size_bytes(descriptor)
            begin = _HEAD.size + len(key)
            head = self._files.read(descriptor, 0, begin)
            if len(head) < begin:
                return None
            magic, crc, key_bytes, data_bytes = _HEAD.unpack_from(head)
            if (magic, key_bytes, data_bytes, head[_HEAD.size :]) != (_MAGIC, len(key), size_bytes - begin, key):
                return None
            data = self._files.read(descriptor, begin, data_bytes)
        is_sound = len(data) == data_bytes and crc32c(data, crc32c(key)) == crc
        return (data, checked) if is_sound else None

    @contextlib.contextmanager
    def _open_file(self, name: str) -> Iterator[int]:
        descriptor = self._files.open(f"{self._folder}/{name}")
        try:
            yield descriptor
        finally:
            self._files.close(descriptor)

    def _stamp_of(self, name: str) -> tuple[int, ...]:
        """Return the stamp of a file, and count a use; return () if the file was not checked within the last hour."""
        with self._lock:
            checked = self._checks.get(name)
            if checked is None or self._clock.monotonic_ns() - checked.when_ns >= _CHECK_VALID_NS:
                return ()
            self._hits += 1
            self._order.touch(name)
            return checked.stamp

    def _keep(self, name: str, temporary: str, size_bytes: int) -> None:
        with self._lock:
            if self._is_unwanted(name):
                self._files.remove(temporary)  # another thread has put or dropped it
                return
            self._files.rename(temporary, f"{self._folder}/{name}")
            for evicted in self._order.add(name, size_bytes):
                self._remove(str(evicted))

    def _is_unwanted(self, name: str) -> bool:
        return name in self._order or name[: _GROUP_DIGITS + 1] in self._refused

    def _handle_failure(self, temporary: str, error: OSError) -> None:
        with contextlib.suppress(OSError):
            self._files.remove(temporary)
        if isinstance(error, IsADirectoryError):  # a folder has the name of this one item
            _LOGGER.warning("an item of the tier cache was dropped: folder=%s, %s", self._folder, error)
            return
        with self._lock:
            self._silent_until_ns = self._clock.monotonic_ns() + _PAUSE_NS
        _LOGGER.warning("the tier cache is off for a minute: folder=%s, %s", self._folder, error)

    def _forget(self, names: list[str]) -> None:
        for name in names:
            if self._order.remove(name):
                self._remove(name)

    def _remove(self, name: str) -> None:
        self._checks.pop(name, None)
        self._handles.drop(name)  # Windows cannot remove an open file
        with contextlib.suppress(OSError):
            self._files.remove(f"{self._folder}/{name}")
        self._handles.drop(name)  # a reader may have opened it again between the two calls


class CacheFolder:
    """The two disk caches of one tier: for chunks and for indexes. Only one process can use a folder at a time.

    Args:
        folder: path of the folder; created if it is missing.
        chunk_bytes: largest size of the cache of chunks.
        index_bytes: largest size of the cache of indexes.
        env: files and clock.

    Raises:
        BlockingIOError: another process uses the folder.
        OSError: the folder cannot be used.
    """

    def __init__(self, folder: str, chunk_bytes: int, index_bytes: int, env: Env) -> None:
        files = env.files
        if files.stat(folder) is None:
            files.make_folder(folder)
        lock_descriptor = files.lock(f"{folder}/{_LOCK_FILE}")
        if lock_descriptor is None:
            raise BlockingIOError(f"another process uses {folder}")
        with contextlib.ExitStack() as resources:
            resources.callback(files.close, lock_descriptor)
            self.chunks = DiskCache(f"{folder}/chunks", chunk_bytes, env)
            resources.callback(self.chunks.close)
            self.indexes = DiskCache(f"{folder}/indexes", index_bytes, env)
            resources.callback(self.indexes.close)
            self._resources = resources.pop_all()

    @classmethod
    def open(cls, folder: str | None, chunk_bytes: int, index_bytes: int, env: Env) -> CacheFolder | None:
        """Return the caches in a folder; None if ``folder`` is None, and None with a warning if it cannot be used."""
        if folder is None:
            return None
        try:
            return cls(folder, chunk_bytes, index_bytes, env)
        except OSError as error:
            _LOGGER.warning("tier.cache.dir=%s is not used: %s", folder, error)
            return None

    def close(self) -> None:
        """Close the caches, and release the folder for other processes. A second call does nothing."""
        self._resources.close()


def unpack_item(read: Callable[[int, int], Buffer], size_bytes: int) -> CachedItem | None:
    """Check a whole file of a cache, and return its contents; None if it is damaged or is another kind of file.

    Args:
        read: called with a position and a size; returns that many bytes, fewer at the end of the file.
        size_bytes: size of the file.
    """
    head = bytes(read(0, _HEAD.size))
    if len(head) != _HEAD.size:
        return None
    magic, crc, key_bytes, data_bytes = _HEAD.unpack(head)
    if magic != _MAGIC or _HEAD.size + key_bytes + data_bytes != size_bytes or key_bytes > _MAX_KEY_BYTES:
        return None
    key = bytes(read(_HEAD.size, key_bytes))
    begin, computed_crc = _HEAD.size + len(key), crc32c(key)
    for position in range(begin, size_bytes, _PIECE_BYTES):
        computed_crc = crc32c(read(position, min(_PIECE_BYTES, size_bytes - position)), computed_crc)
    if computed_crc != crc:
        return None
    group, _, item = key.decode("utf-8", "replace").rpartition("\n")
    return CachedItem(group, item, begin, data_bytes)


def is_cached_name(name: str) -> bool:
    """Return True if ``name`` has the form of the file names of items in a cache."""
    return _FILE_NAME.fullmatch(name) is not None


def _write(files: Vfs, path: str, parts: list[bytes | bytearray | memoryview]) -> None:
    descriptor = files.open(path, create=True)
    try:
        position = 0
        for part in parts:
            if files.write(descriptor, position, part) < len(part):
                raise OSError(errno.ENOSPC, "no space left")
            position += len(part)
    finally:
        files.close(descriptor)


def _key(group: str, item: str) -> bytes:
    return f"{group}\n{item}".encode()


def _group_prefix(group: str) -> str:
    return hashlib.sha256(group.encode()).hexdigest()[:_GROUP_DIGITS] + "-"


@functools.lru_cache(1024)
def _place(group: str, item: str) -> tuple[str, int]:
    """Return the name of an item's file, and the position of its data."""
    return _file_name(group, item), _HEAD.size + len(_key(group, item))


@functools.lru_cache(1024)
def _file_name(group: str, item: str) -> str:
    return _group_prefix(group) + hashlib.sha256(item.encode()).hexdigest()[:_ITEM_DIGITS]
