"""The inventory: topics and partitions of all log directories of an engine, stored in each directory.

If some directories are unavailable, an engine opens with the other directories. The inventory then lists the partitions
in unavailable directories. The inventory also contains the topics' settings. They are used if the directory with the
topics file is unavailable, or is no longer the first directory of ``log.dirs``. An engine with one directory creates no
inventory, but updates an existing one. A broker reads topics, partitions and settings from the cluster metadata
instead.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from stratalog.engine.open.log_dir import LogDir
from stratalog.errors import CorruptCheckpointError, LogDirError, StorageError
from stratalog.log.folder.directory_state import read_topic_id
from stratalog.model.names import INVENTORY_FILE, TOPICS_FILE, TopicPartition
from stratalog.reading.topic_table import TopicEntry, format_topics, parse_topics
from stratalog.spi.segment_store import SegmentStore

_LOGGER: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Inventory:
    """Topics of an engine, with their settings and numbers of partitions.

    Attributes:
        version: increases by one with each change.
        entries: entries of the topics file (topic id and settings), by topic.
        partitions: number of partitions of each topic, including topics without an entry.
    """

    version: int
    entries: Mapping[str, TopicEntry]
    partitions: Mapping[str, int]

    def log_names(self) -> list[TopicPartition]:
        """Return the names of all partitions, of each topic from partition 0 on."""
        return [TopicPartition(topic, number) for topic, count in self.partitions.items() for number in range(count)]


NOTHING: Final = Inventory(0, {}, {})


def read_inventory(stores: Iterable[SegmentStore]) -> Inventory | None:
    """Return the inventory with the highest version in the given directories, or None if there is none.

    If an inventory file is damaged or cannot be read, a warning is logged, and the file is ignored.
    """
    return next(iter(_read_inventories(stores)), None)


def _read_inventories(stores: Iterable[SegmentStore]) -> list[Inventory]:
    """Return the inventories of all directories, the highest version first; see ``read_inventory``."""
    inventories = []
    for store in stores:
        try:
            data = store.read_small(INVENTORY_FILE)
            if data is not None:
                inventories.append(parse_inventory(data, store.path(INVENTORY_FILE)))
        except StorageError as error:
            _LOGGER.warning("an inventory file is ignored: %s", error)
    return sorted(inventories, key=lambda inventory: inventory.version, reverse=True)


def missing_entries(dirs: Sequence[LogDir], first_entries: Mapping[str, TopicEntry]) -> dict[str, TopicEntry]:
    """Return the entries of topics in ``dirs`` that the topics file of the first directory, ``first_entries``, lacks.

    The entries are read from the inventories, and then from the topics files of the other directories, which may be
    older. An entry is used only if a folder of the topic has the topic id of the entry. Other entries belong to a
    deleted topic with the same name, or to another engine, from which the directory was taken.
    """
    missing = dict[str, TopicEntry]()
    folders = [
        (directory, log.topic, folder)
        for directory in dirs
        for log, folder in directory.folders.items()
        if log.topic not in first_entries
    ]
    sources = list[Mapping[str, TopicEntry]]()
    if folders:
        sources += (inventory.entries for inventory in _read_inventories(directory.store for directory in dirs))
        sources += (_read_other_topics(directory.store) for directory in dirs[1:])
    for directory, topic, folder in folders:
        entries = [source[topic] for source in sources if topic in source]
        if entries and topic not in missing:
            with contextlib.suppress(CorruptCheckpointError, LogDirError):  # the open of that partition reports it
                topic_id = read_topic_id(directory.store.open_log(folder))
                missing.update((topic, entry) for entry in entries[::-1] if entry.topic_id == topic_id)
    return missing


def _read_other_topics(store: SegmentStore) -> Mapping[str, TopicEntry]:
    """Return the entries of the topics file in a directory that may have been the first one; {} if it is unreadable."""
    try:
        return parse_topics(store.read_small(TOPICS_FILE), store.path(TOPICS_FILE))
    except StorageError as error:
        _LOGGER.warning("a topics file is ignored: %s", error)
        return {}


def keep_inventory(
    stores: Sequence[SegmentStore], entries: Mapping[str, TopicEntry], logs: Iterable[TopicPartition]
) -> None:
    """Store the inventory of the topics ``entries`` and their ``logs`` in each directory. Errors are only logged.

    The file is written only in directories in which it is missing or different. A single directory gets no file, but
    its existing file is updated.
    """
    newest = read_inventory(stores)
    if newest is None and len(stores) <= 1:
        return
    before = newest or NOTHING
    partitions = Counter[str]()
    for log in logs:
        partitions[log.topic] = max(partitions[log.topic], log.partition + 1)
    inventory = before
    if (before.entries, before.partitions) != (entries, partitions):
        inventory = Inventory(before.version + 1, entries, partitions)
    if inventory is NOTHING:
        return
    data = format_inventory(inventory)
    for store in stores:
        try:
            if store.read_small(INVENTORY_FILE) != data:
                store.replace_small(INVENTORY_FILE, data)
        except StorageError as error:
            _LOGGER.warning("the inventory was not stored: %s", error)


def format_inventory(inventory: Inventory) -> bytes:
    """Return the contents of the inventory file.

    The file is a topics file with two more JSON names: ``inventory``, which is the version, and ``partitions``.
    """
    body = json.loads(format_topics(inventory.entries))
    body |= {"inventory": inventory.version, "partitions": dict(sorted(inventory.partitions.items()))}
    return json.dumps(body, indent=1).encode() + b"\n"


def parse_inventory(data: bytes, file: str) -> Inventory:
    """Return the inventory from the contents of its file. ``file`` is the path, for error texts."""
    entries = parse_topics(data, file)
    body = json.loads(data)
    version, partitions = body.get("inventory"), body.get("partitions")
    if type(version) is not int or not isinstance(partitions, dict):
        raise CorruptCheckpointError("the inventory has no version or no partitions", file)
    if not all(type(count) is int and count > 0 for count in partitions.values()):
        raise CorruptCheckpointError("a number of partitions in the inventory is not above 0", file)
    return Inventory(version, entries, partitions)
