"""Objects in the memory of this process, for tests and experiments."""

from __future__ import annotations

from typing import ClassVar

from fsspec.implementations.memory import MemoryFile

from stratalog.spi import Buffer, Capability, Created, ObjectStore, OpenContext
from stratalog_s3.deadline import seconds_left
from stratalog_s3.location import parse_location
from stratalog_s3.secret import SecretOptions
from stratalog_s3.store import FsspecStore


class MemoryStore(FsspecStore):
    """Object store in memory. Stores of a process with the same URI share their objects, until the process ends."""

    in_process: ClassVar[bool] = True

    @property
    def capabilities(self) -> Capability:
        """``Capability.CREATE`` only."""
        return Capability.CREATE

    def create(self, key: str, data: Buffer, *, deadline_ns: int) -> Created:
        """Write the object atomically if the key does not exist. Return ``CREATED`` or ``EXISTS``."""
        path = self._writable(key)
        seconds_left(self._clock, deadline_ns, key)
        filesystem = self._filesystem()[0]
        # fsspec's own method is not atomic. `setdefault` is atomic, and all instances share the dictionary
        new_file = MemoryFile(filesystem, path, bytes(data))
        return Created.CREATED if filesystem.store.setdefault(path, new_file) is new_file else Created.EXISTS


def open_memory(context: OpenContext) -> ObjectStore:
    """Return a store in fsspec's memory. Raise ConfigError if the URI is not allowed."""
    location, options = parse_location(context.location), SecretOptions(context.options)
    return MemoryStore(location, options, context.env.clock, read_only=context.read_only)
