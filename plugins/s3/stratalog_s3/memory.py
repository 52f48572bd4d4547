"""Objects in fsspec's memory, which all parts of the process share, for tests and experiments."""

from __future__ import annotations

from typing import ClassVar

from fsspec.implementations.memory import MemoryFile

from stratalog.spi import Buffer, Capability, Created, ObjectStore, OpenContext
from stratalog_s3.create import create_capability
from stratalog_s3.deadline import seconds_left
from stratalog_s3.location import parse_location
from stratalog_s3.secret import SecretOptions
from stratalog_s3.store import FsspecStore


class MemoryStore(FsspecStore):
    """Object store in memory. Two stores with one URI see the same objects, which live as long as the process."""

    in_process: ClassVar[bool] = True

    @property
    def capabilities(self) -> Capability:
        """``Capability.CREATE`` only: fsspec lists whole folders."""
        return create_capability(self._location.scheme)

    def create(self, key: str, data: Buffer, *, deadline_ns: int) -> Created:
        """Write the object only if the key does not exist; return the outcome.

        fsspec's own method checks for the key and then writes, so several concurrent writers can succeed. This method
        uses ``dict.setdefault``, which is atomic, on the dictionary that all instances share.
        """
        path = self._writable(key)
        seconds_left(self._clock, deadline_ns, key)
        filesystem = self._filesystem()[0]
        mine = MemoryFile(filesystem, path, bytes(data))
        return Created.CREATED if filesystem.store.setdefault(path, mine) is mine else Created.EXISTS


def open_memory(context: OpenContext) -> ObjectStore:
    """Return a store in fsspec's memory; raise ConfigError if the URI is not allowed."""
    location, options = parse_location(context.location), SecretOptions(context.options)
    return MemoryStore(location, options, context.env.clock, read_only=context.read_only)
