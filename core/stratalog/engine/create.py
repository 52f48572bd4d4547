"""Making new partitions.

Source: apache/kafka PartitionMetadataFile: the topic id is on disk before any record.
"""

from __future__ import annotations

import uuid

from stratalog.engine.logdir import LogDir
from stratalog.env import Env
from stratalog.log.directory import format_topic_id
from stratalog.model.names import PARTITION_METADATA_FILE, TopicId, TopicPartition, partition_folder


def new_topic_id(env: Env) -> TopicId:
    """A random UUID (version 4) whose text does not begin with a dash, as Kafka makes them."""
    while True:
        made = TopicId.from_uuid(uuid.UUID(int=env.chance.getrandbits(128), version=4))
        if not made.text.startswith("-"):
            return made


def create_partition(directory: LogDir, log: TopicPartition, topic_id: TopicId) -> None:
    """Make a partition's folder with its ``partition.metadata``, durable on return."""
    folder = partition_folder(log)
    files = directory.store.open_log(folder, create=True)
    files.replace_small(PARTITION_METADATA_FILE, format_topic_id(topic_id))
    directory.folders[log] = folder
