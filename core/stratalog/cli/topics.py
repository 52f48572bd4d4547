"""``stratalog topics``: list, create, describe."""

from __future__ import annotations

import click

from stratalog.cli.options import Place, json_option, place_options
from stratalog.cli.output import Output
from stratalog.errors import StorageError, UnknownTopicError
from stratalog.reading.reader import Reader


@click.group()
def topics() -> None:
    """List, create and describe topics."""


@topics.command("list")
@place_options
@json_option
def list_topics(place: Place, output: Output) -> int:
    """List the topics of a directory or a tier, with what can be read of each.

    The exit code is 1 if a partition cannot be read.
    """
    rows, wrong = [], False
    with place.reader() as reader:
        for name, info in reader.topics().items():
            records, segments, size, error = 0, 0, 0, ""
            for partition in info.partitions:
                try:
                    log = reader.log(name, partition)
                    offsets, parts = log.offsets(), log.segments()
                except StorageError as found:
                    wrong, error = True, str(found)
                    continue
                records += offsets.high_watermark - offsets.log_start
                segments += len(parts)
                size += sum(part.size_bytes for part in parts)
            rows.append((name, str(info.topic_id or ""), len(info.partitions), records, segments, size, error))
    output.table("topics", ("topic", "topic_id", "partitions", "offsets", "segments", "bytes", "error"), rows)
    return 1 if wrong else 0


@topics.command("create")
@click.argument("topic")
@click.option("--partitions", default=1, show_default=True, type=click.IntRange(1), help="How many.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A topic setting; can be repeated.")
@place_options
@json_option
def create_topic(place: Place, output: Output, topic: str, partitions: int, settings: tuple[str, ...]) -> None:
    """Create TOPIC."""
    config = dict(split_setting(setting) for setting in settings)
    with place.new_engine() as engine:
        info = engine.create_topic(topic, partitions=partitions, config=config)
    output.table("created", ("topic", "topic_id", "partitions"), [(info.name, str(info.topic_id), partitions)])


@topics.command("describe")
@click.argument("topic")
@place_options
@json_option
def describe_topic(place: Place, output: Output, topic: str) -> None:
    """Show the bounds and segments of every partition of TOPIC, and its settings."""
    with place.reader() as reader:
        info = reader.topics().get(topic)
        if info is None:
            raise UnknownTopicError(f"there is no topic {topic} in {reader.location}")
        _bounds(reader, output, topic, info.partitions)
        changed = info.config.to_mapping(only_changed=True)
        if not output.as_json and changed:
            output.table("settings", ("setting", "value"), changed.items())


def _bounds(reader: Reader, output: Output, topic: str, partitions: tuple[int, ...]) -> None:
    bounds, segments = [], []
    for partition in partitions:
        log = reader.log(topic, partition)
        found = log.offsets()
        bounds.append(
            (partition, found.log_start, found.local_log_start, found.last_stable, found.high_watermark, found.log_end)
        )
        for part in log.segments():
            place = (
                "active"
                if part.is_active
                else " + ".join(word for word, there in (("local", part.is_local), ("remote", part.is_remote)) if there)
            )
            segments.append((partition, part.base_offset, part.end_offset, part.size_bytes, place))
    columns = ("partition", "log_start", "local_log_start", "last_stable", "high_watermark", "log_end")
    output.table(f"{topic}: offsets", columns, bounds)
    output.table(f"{topic}: segments", ("partition", "base_offset", "end_offset", "bytes", "where"), segments)


def split_setting(text: str) -> tuple[str, str]:
    """``key=value`` as a pair; a usage error otherwise."""
    name, mark, value = text.partition("=")
    if not mark or not name:
        raise click.BadParameter(f"{text!r} is not of the form KEY=VALUE")
    return name, value
