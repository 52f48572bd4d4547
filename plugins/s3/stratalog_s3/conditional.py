"""Stores that create an object atomically: on Google Cloud Storage and Azure Blob Storage, and in memory.

In the clouds, one conditional request creates the object.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Final

from fsspec.implementations.memory import MemoryFile

from stratalog.errors import PluginImportError
from stratalog.spi import Buffer, Capability, Created, ObjectStore, OpenContext
from stratalog_s3.deadline import seconds_left
from stratalog_s3.location import parse_location
from stratalog_s3.secret import SecretOptions
from stratalog_s3.store import FsspecStore, read_options

_GOOGLE: Final[Mapping[str, object]] = {"mode": "create"}  # gcsfs sends ifGenerationMatch=0
_AZURE: Final[Mapping[str, object]] = {"overwrite": False}  # adlfs sends If-None-Match: *
CONDITIONS: Final[Mapping[str, Mapping[str, object]]] = MappingProxyType(
    {"gs": _GOOGLE, "gcs": _GOOGLE, "abfs": _AZURE, "abfss": _AZURE, "az": _AZURE}
)


class ConditionalStore(FsspecStore):
    """A store whose fsspec file system has a keyword argument for conditional uploads.

    The first use of the store raises PluginImportError if the installed file system would ignore the argument.
    """

    @property
    def capabilities(self) -> Capability:
        """``Capability.CREATE`` only. The store does not declare ``LIST_AFTER``, because fsspec lists whole folders."""
        return Capability.CREATE

    def create(self, key: str, data: Buffer, *, deadline_ns: int) -> Created:
        """Write the object atomically if the key does not exist; see ``ObjectStore.create``."""
        path = self._writable(key)
        with self._errors(key):
            self._filesystem()  # if this raises an error, nothing was sent
        with self._create_errors(key) as outcome:
            try:
                self._call("pipe_file", path, bytes(data), deadline_ns=deadline_ns, **CONDITIONS[self._location.scheme])
            except FileExistsError:
                return Created.EXISTS
        return outcome[0]

    def _make(self) -> Any:
        filesystem, root = super()._make()
        parameters = inspect.signature(filesystem._pipe_file).parameters  # noqa: SLF001 - pipe_file calls it on the event loop
        (keyword,) = CONDITIONS[self._location.scheme]
        if keyword not in parameters:
            library = type(filesystem).__module__.partition(".")[0]
            raise PluginImportError(
                f"this release of {library} is too old, because it would overwrite existing objects: upgrade it",
                "s3",
                library,
            )
        return filesystem, root


def open_conditional(context: OpenContext) -> ObjectStore:
    """Return a store that connects at its first request. Raise ConfigError if the URI or an option is wrong."""
    location, options = parse_location(context.location), read_options(context)
    return ConditionalStore(location, options, context.env.clock, read_only=context.read_only)


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
