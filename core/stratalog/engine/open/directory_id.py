"""``meta.properties``: the cluster, broker and directory ids of a log directory.

stratalog reads and compares the file, but never writes it: Kafka assigns the ids.

Source: apache/kafka MetaProperties, MetaPropertiesEnsemble.verify.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from stratalog.errors import ConfigError, CorruptCheckpointError
from stratalog.model.names import META_PROPERTIES_FILE
from stratalog.spi.segment_store import SegmentStore

VERSIONS: Final = ("0", "1")
_SHARED: Final = (("cluster.id",), ("node.id", "broker.id"))  # must be equal in all directories; older names last


def read_identity(store: SegmentStore) -> dict[str, str]:
    """Return the properties in a directory's ``meta.properties``, by name; {} if the file does not exist.

    Raises:
        CorruptCheckpointError: the version of the file is missing or unknown.
        LogDirError: the file cannot be read.
    """
    data = store.read_small(META_PROPERTIES_FILE)
    if data is None:
        return {}
    lines = [line.strip() for line in data.decode("latin-1").splitlines()]
    pairs = [line.partition("=") for line in lines if line and not line.startswith(("#", "!"))]
    found = {name.strip(): value.strip() for name, _, value in pairs}
    if found.get("version") not in VERSIONS:
        version = found.get("version")
        raise CorruptCheckpointError(
            f"meta.properties has version {version!r}, which is not one of {', '.join(VERSIONS)}",
            store.path(META_PROPERTIES_FILE),
        )
    return found


def check_identities(directories: Sequence[tuple[str, dict[str, str]]]) -> None:
    """Raise ConfigError if two directories have different cluster or broker ids, or the same directory id.

    ``directories`` has the path and the properties of each directory. A missing id is not compared.
    """
    for names in _SHARED:
        stored = [(path, value) for path, found in directories if (value := _first(found, names))]
        for path, value in stored:
            if value != stored[0][1]:
                raise ConfigError(f"{names[0]} is {stored[0][1]} in {stored[0][0]}, but {value} in {path}")
    seen: dict[str, str] = {}
    for path, found in directories:
        own = found.get("directory.id")
        if own is not None and own in seen:
            raise ConfigError(
                f"directory.id is {own} in {seen[own]} and in {path}: one is a copy of the other, remove the copy"
            )
        if own is not None:
            seen[own] = path


def _first(found: dict[str, str], names: Sequence[str]) -> str | None:
    return next((found[name] for name in names if name in found), None)
