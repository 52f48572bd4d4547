"""Creation of a partition's folder, and computation of a topic's changed settings."""

from __future__ import annotations

from collections.abc import Mapping

from stratalog.config.topic import TopicConfig
from stratalog.engine.open.log_dir import LogDir
from stratalog.errors import ConfigError, TopicExistsError
from stratalog.log.folder.directory_state import store_topic_id
from stratalog.model.names import TopicId, TopicPartition, partition_folder
from stratalog.reading.topic_table import TopicEntry, TopicTable


def create_partition(directory: LogDir, log: TopicPartition, topic_id: TopicId) -> None:
    """Create a partition's folder with its ``partition.metadata``, durable on return.

    Raises:
        TopicExistsError: the directory has a file or folder with the partition's name.
        StorageError: the creation failed; ``LogDir.discard`` removes the folder if it exists.
    """
    directory.forget_offsets(log)
    folder = directory.folders[log] = partition_folder(log)  # stored first, because creation may fail half way
    try:
        files = directory.store.open_log(folder, create=True)
    except FileExistsError as error:
        del directory.folders[log]
        raise TopicExistsError(
            f"{directory.store.path(folder)} exists, and is not a log of this engine: move it to another place"
        ) from error
    store_topic_id(files, topic_id)


def altered(
    topics: TopicTable, topic: str, changes: Mapping[str, object], topic_id: TopicId | None
) -> tuple[TopicEntry, TopicConfig]:
    """Return the entry to store for a topic with changed settings, and all its new settings.

    In ``changes``, the value None resets a setting to its default. Stored settings that no installed plugin knows stay
    as they are, unless they are reset.

    Raises:
        UnknownSettingError, ConfigError: a change is wrong, or no partition is open from which to read the topic id.
    """
    source = f"alter_topic({topic!r})"
    for name in changes.keys() - topics.defaults.to_mapping().keys() - topics.chosen(topic).keys():
        topics.defaults.replaced({name: ""}, source)  # raises, with the nearest name
    unknown = topics.unknown(topic)
    before = {name: value for name, value in topics.chosen(topic).items() if name not in unknown}
    chosen = {name: value for name, value in {**before, **changes}.items() if value is not None}
    checked = topics.checked(chosen, source)
    stored = checked.to_mapping()
    known = topics.topic_id(topic) or topic_id
    if known is None:
        raise ConfigError(f"the id of topic {topic} is not known, because none of its partitions can be opened")
    kept = {name: value for name, value in unknown.items() if name not in changes}
    return TopicEntry(known, {**kept, **{name: stored[name] for name in chosen}}), checked
