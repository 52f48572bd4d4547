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
_SHARED: Final = (("cluster.id",), ("node.id", "broker.id"))  # the directories share these ids; older names last


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
    properties = {name.strip(): value.strip() for name, _, value in pairs}
    if properties.get("version") not in VERSIONS:
        version = properties.get("version")
        raise CorruptCheckpointError(
            f"meta.properties has version {version!r}, which is not one of {', '.join(VERSIONS)}",
            store.path(META_PROPERTIES_FILE),
        ).advised(
            "restore the file from a copy, or delete the file if no Kafka broker uses the directory"
            if version is None
            else "open the directory with the release that wrote the file"
        )
    return properties


def check_identities(directories: Sequence[tuple[str, dict[str, str]]]) -> None:
    """Raise ConfigError if two directories have different cluster or broker ids, or the same directory id.

    ``directories`` has the path and the properties of each directory. A missing id is not compared.
    """
    for names in _SHARED:
        ids = [(path, value) for path, properties in directories if (value := _first(properties, names))]
        for path, value in ids:
            if value != ids[0][1]:
                raise ConfigError(f"{names[0]} is {ids[0][1]} in {ids[0][0]}, but {value} in {path}")
    path_by_id: dict[str, str] = {}
    for path, properties in directories:
        directory_id = properties.get("directory.id")
        if directory_id is not None and directory_id in path_by_id:
            raise ConfigError(
                f"directory.id is {directory_id} in {path_by_id[directory_id]} and in {path}: one is a copy of the other, "
                "remove the copy"
            )
        if directory_id is not None:
            path_by_id[directory_id] = path


def _first(properties: dict[str, str], names: Sequence[str]) -> str | None:
    return next((properties[name] for name in names if name in properties), None)
