"""Commit of a group's offsets by a bulk writer, into ``__consumer_offsets`` of its target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from stratalog.client.group_offsets import commit_record
from stratalog.client.partitioner import partition_of_name
from stratalog.client.statetopic import CONFIG, PARTITIONS
from stratalog.env import Env
from stratalog.errors import UnknownTopicError
from stratalog.model.arguments import checked
from stratalog.model.messages.offsets_topic import OFFSETS_TOPIC
from stratalog.model.names import TopicPartition
from stratalog.model.records import RecordColumns
from stratalog.writing.bulk_writer import BulkWriter

# maximum size of a merged segment of commits; one commit has about 100 bytes for each partition
_MERGED_BYTES: Final = 1 << 20


@checked
def commit_offsets(
    writer: BulkWriter, group: str, offsets: Mapping[TopicPartition, int], *, env: Env | None = None
) -> None:
    """Commit offsets of a group in the target of a bulk writer, and create ``__consumer_offsets`` if it does not exist.

    Args:
        writer: writer of the target.
        group: name of the group.
        offsets: offset of the next record to read, at least 0, by partition. All offsets are stored in one batch. If
            the mapping is empty, the function does nothing.
        env: has the clock for the timestamp; None for the system's clock.

    Raises:
        ConfigError: an offset is negative.
        InvalidRecordError: the group's name is longer than 32767 bytes.
        The errors of ``BulkWriter.append``.
    """
    if not offsets:
        return
    try:
        count = writer.partitions(OFFSETS_TOPIC)
    except UnknownTopicError:
        writer.create_topic(OFFSETS_TOPIC, PARTITIONS, CONFIG)
        count = PARTITIONS
    now_ms = (env or Env()).clock.now_ms()
    records = [commit_record(group, name, offset, now_ms) for name, offset in sorted(offsets.items())]
    log = TopicPartition(OFFSETS_TOPIC, partition_of_name(group, count))
    with writer.stage(log) as stage:
        stage.add(RecordColumns.from_records(records))
        staged = stage.finish()
    writer.append(log, staged)
    writer.merge_end(log, _MERGED_BYTES)
