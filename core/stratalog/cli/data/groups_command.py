"""``stratalog groups``: list, describe, reset and delete the committed offsets of consumer groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import click

from stratalog.cli.options import LogPlace, confirm, json_option, place_options
from stratalog.cli.output import Output
from stratalog.cli.parameters import Start, start_of
from stratalog.client.committed_offsets import CommittedOffset, CommittedOffsets, lag
from stratalog.engine.engine import Engine
from stratalog.errors import ConfigError
from stratalog.model.names import TopicPartition
from stratalog.reading.reader import Reader

_NAMED: Final = 10  # maximum number of groups in an error text


@click.group()
def groups() -> None:
    """List, describe, reset and delete consumer groups.

    Kafka and stratalog store the committed offsets of groups in the topic __consumer_offsets.
    """


@groups.command("list")
@place_options
@json_option
def list_groups(place: LogPlace, output: Output) -> None:
    """List the groups, and the topics of their committed offsets.

    The command does not lock or change the logs. It can run while a broker or an engine is running.
    """
    rows = []
    with place.reader() as reader:
        groups = CommittedOffsets(reader)
        for group in groups.groups():
            committed = groups.committed(group)
            topics = sorted({partition.topic for partition in committed})
            rows.append((group, ", ".join(topics), len(committed)))
    output.table("groups", ("group", "topics", "partitions"), rows)


@groups.command("describe")
@click.argument("group")
@place_options
@json_option
def describe_group(place: LogPlace, output: Output, group: str) -> None:
    """Show the committed offsets of GROUP, and its lag.

    The lag is the number of offsets from the committed offset to the high watermark. The command does not lock or
    change the logs. It can run while a broker or an engine is running.
    """
    with place.reader() as reader:
        groups = CommittedOffsets(reader)
        committed = _require_committed(group, groups.committed(group), groups.groups())
        rows = [_describe(reader, name, offset) for name, offset in committed.items()]
    columns = ("topic", "partition", "committed", "log_start", "high_watermark", "lag", "metadata")
    output.table(group, columns, rows)


def _describe(reader: Reader, name: TopicPartition, committed: CommittedOffset) -> tuple[object, ...]:
    if name not in reader.partitions():
        return (*name, committed.offset, None, None, None, committed.metadata)
    offsets = reader.log(*name).offsets()
    records_behind = lag(offsets, committed.offset)
    return (*name, committed.offset, offsets.log_start, offsets.high_watermark, records_behind, committed.metadata)


@groups.command("reset")
@click.argument("group")
@click.argument("topics", nargs=-1)
@click.option(
    "--to", "position", required=True, type=start_of, metavar="POSITION",
    help="New position: an offset, beginning, end, -N for N offsets before the end, or s@TIME. If a partition does not "
    "have this offset, its nearest offset is used.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Show the new offsets without committing them.")
@place_options
@json_option
def reset_group(
    place: LogPlace, output: Output, group: str, topics: tuple[str, ...], position: Start, *, dry_run: bool
) -> None:
    """Commit new offsets for GROUP in all partitions of TOPICS.

    Without TOPICS, the command changes the offsets of all partitions in which the group has committed offsets.
    Stop the consumers of the group first. A running consumer would commit its own position later.
    """
    if not group:  # for example, an empty variable in a script
        raise ConfigError("group must not be empty")
    with place.engine() as engine:
        names = _partitions(engine, topics) if topics else list(_read_committed(engine, group))
        old = engine.group_offsets(group)
        new = {name: position.nearest_in(engine.log(*name)) for name in names}
        if not dry_run:
            engine.alter_group_offsets(group, new)
    rows = [(*name, old[name].offset if name in old else None, offset) for name, offset in new.items()]
    output.table("would be reset" if dry_run else "reset", ("topic", "partition", "before", "committed"), rows)


@groups.command("delete")
@click.argument("group")
@click.option("--yes", is_flag=True, help="Delete without asking for confirmation.")
@place_options
@json_option
def delete_group(place: LogPlace, output: Output, group: str, *, yes: bool) -> None:
    """Delete the committed offsets and the stored state of GROUP.

    The consumers of the group then start at the position that auto.offset.reset selects.
    """
    with place.engine() as engine:
        committed = _read_committed(engine, group)
        if not yes:
            confirm(f"Delete the offsets of group {group} for {len(committed)} partitions?")
        engine.delete_group(group)
    output.table("deleted", ("group", "partitions"), [(group, len(committed))])


def _read_committed(engine: Engine, group: str) -> dict[TopicPartition, CommittedOffset]:
    """Return the committed offsets of a group, sorted by partition; raise ConfigError if there are none."""
    return _require_committed(group, engine.group_offsets(group), engine.groups())


def _require_committed(
    group: str, committed: Mapping[TopicPartition, CommittedOffset], groups: Iterable[str]
) -> dict[TopicPartition, CommittedOffset]:
    if not committed:
        names = list(groups)
        hint = f"groups: {', '.join(names[:_NAMED])}" if names else "no group has any"
        raise ConfigError(f"group {group} has no committed offsets; {hint}")
    return dict(sorted(committed.items()))


def _partitions(engine: Engine, topics: tuple[str, ...]) -> list[TopicPartition]:
    """Return all partitions of the topics.

    For a topic that does not exist, return partition 0. The caller then calls ``Engine.log``, which raises
    UnknownTopicError.
    """
    infos = engine.topics()
    numbers = {topic: infos[topic].partitions if topic in infos else (0,) for topic in topics}
    return [TopicPartition(topic, number) for topic in topics for number in numbers[topic]]
