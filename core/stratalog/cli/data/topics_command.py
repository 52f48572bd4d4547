"""``stratalog topics``: list, create, alter, delete and describe topics."""

from __future__ import annotations

from typing import Final

import click

from stratalog.cli.options import LogPlace, confirm, json_option, place_options
from stratalog.cli.output import Output
from stratalog.cli.parameters import split_setting
from stratalog.errors import StorageError, TierUnavailableError
from stratalog.log.read.log_reader import summaries
from stratalog.model.names import unknown_topic
from stratalog.reading.reader import StaticLog
from stratalog.spi.cleanup import SegmentSummary
from stratalog.tier.upkeep.cost import tiny_segments

_DESCRIPTIONS: Final = {
    "offsets": (
        "partition", "log_start", "local_log_start", "recovery_point", "last_stable", "high_watermark", "log_end", "error",
    ),
    "segments": ("partition", "base_offset", "end_offset", "bytes", "where"),
    "leader epochs": ("partition", "leader_epoch", "start_offset"),
    "producers": (
        "partition", "producer_id", "producer_epoch", "last_sequence", "last_offset", "open_transaction",
    ),
}  # fmt: skip
"""Columns of the tables of ``topics describe``, by title. Only the first two tables are printed if they are empty."""


@click.group()
def topics() -> None:
    """List, create, alter, delete and describe topics."""


@topics.command("list")
@place_options
@json_option
def list_topics(place: LogPlace, output: Output) -> int:
    """List the topics of a directory or a tier.

    The column offsets has the number of offsets from the log start to the high watermark. The exit code is 1 if a
    partition cannot be read.
    """
    rows, has_failed = [], False
    with place.reader() as reader:
        for name, info in reader.topics().items():
            records, segments, size_bytes, error = 0, 0, 0, ""
            for partition in info.partitions:
                try:
                    log = reader.log(name, partition)
                    offsets, segment_summaries = log.offsets(), log.segments()
                except StorageError as failure:
                    has_failed, error = True, str(failure)
                    continue
                records += offsets.high_watermark - offsets.log_start
                segments += len(segment_summaries)
                size_bytes += sum(summary.size_bytes for summary in segment_summaries)
            rows.append((name, str(info.topic_id or ""), len(info.partitions), records, segments, size_bytes, error))
    output.table("topics", ("topic", "topic_id", "partitions", "offsets", "segments", "bytes", "error"), rows)
    return 1 if has_failed else 0


@topics.command("create")
@click.argument("topic")
@click.option("--partitions", default=1, type=click.IntRange(1), help="Number of partitions.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A topic setting; can be repeated.")
@place_options
@json_option
def create_topic(place: LogPlace, output: Output, topic: str, partitions: int, settings: tuple[str, ...]) -> None:
    """Create TOPIC.

    The command warns if the settings make segments in the tier very small. `stratalog tier cost` shows the cost.
    """
    config = dict(split_setting(setting) for setting in settings)
    with place.new_engine() as engine:
        info = engine.create_topic(topic, partitions=partitions, config=config)
        warning = tiny_segments(info.config) if engine.tier is not None else ""
    fields = {"topic": info.name, "topic_id": str(info.topic_id), "partitions": partitions}
    if output.as_json:
        fields["warning"] = warning
    output.table("created", tuple(fields), [tuple(fields.values())])
    _warn(output, warning)


@topics.command("alter")
@click.argument("topic")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A topic setting; can be repeated.")
@click.option("--unset", "unset", multiple=True, metavar="KEY", help="Reset a setting to its default; can be repeated.")
@click.option("--partitions", type=click.IntRange(1), help="New number of partitions. Partitions cannot be removed.")
@place_options
@json_option
def alter_topic(
    place: LogPlace,
    output: Output,
    topic: str,
    settings: tuple[str, ...],
    unset: tuple[str, ...],
    partitions: int | None,
) -> None:
    """Change settings of TOPIC, or add partitions.

    After partitions are added, new records of a key can be in a different partition than the key's older records.
    """
    changes: dict[str, object] = {**dict.fromkeys(unset), **dict(split_setting(setting) for setting in settings)}
    if not changes and partitions is None:
        raise click.UsageError("nothing to change: add --set KEY=VALUE, --unset KEY or --partitions N")
    rows: list[tuple[object, ...]] = []
    warning = ""
    with place.engine() as engine:
        if changes:
            config = engine.alter_topic(topic, changes).config
            rows += [(topic, name, config.to_mapping()[name]) for name in changes]
            warning = tiny_segments(config) if engine.tier is not None else ""
        if partitions is not None:
            rows.append((topic, "partitions", len(engine.create_partitions(topic, partitions).partitions)))
    output.table("altered", ("topic", "setting", "value"), rows)
    _warn(output, warning)


def _warn(output: Output, warning: str) -> None:
    """Print the warning; print nothing if it is ""."""
    if warning:
        output.note(f"warning: {warning}")


@topics.command("delete")
@click.argument("topic")
@click.option("--yes", is_flag=True, help="Delete without asking for confirmation.")
@place_options
@json_option
def delete_topic(place: LogPlace, output: Output, topic: str, *, yes: bool) -> None:
    """Delete TOPIC and all its records, on local disk and in the tier."""
    with place.engine() as engine:
        if not yes and topic in engine.topics():
            confirm(f"Delete topic {topic} with all its records?")
        engine.delete_topic(topic)
    output.table("deleted", ("topic",), [(topic,)])


@topics.command("describe")
@click.argument("topic")
@place_options
@json_option
def describe_topic(place: LogPlace, output: Output, topic: str) -> int:
    """Show the partitions and the settings of TOPIC.

    Shows the offsets, segments, leader epochs and producers of each partition. The exit code is 1 if a partition cannot
    be read; the other partitions are shown. If the store of the tier is unavailable, only local data is shown.
    """
    rows: dict[str, list[tuple[object, ...]]] = {title: [] for title in _DESCRIPTIONS}
    has_failed = False
    with place.reader(allow_offline=True) as reader:
        info = reader.topics().get(topic)
        if info is None:
            raise unknown_topic(topic, reader.topics(), reader.location)
        for partition in info.partitions:
            try:
                error = _describe(rows, partition, reader.log(topic, partition))
            except StorageError as failure:
                error = str(failure)
                rows["offsets"].append((partition, *[None] * 6, error))
            has_failed |= bool(error)
        for title, columns in _DESCRIPTIONS.items():
            if rows[title] or title in {"offsets", "segments"}:
                output.table(f"{topic}: {title}", columns, rows[title])
        try:
            changed_settings = info.config.to_mapping(only_changed=True)
        except StorageError:  # printed before, as the error of the partition that has the settings
            changed_settings, has_failed = {}, True
        if not output.as_json and changed_settings:
            output.table("settings", ("setting", "value"), changed_settings.items())
    return 1 if has_failed else 0


def _describe(rows: dict[str, list[tuple[object, ...]]], partition: int, log: StaticLog) -> str:
    """Add one partition to the rows of each table. If its tier is unavailable, add local segments only.

    Return the error of the tier, or "".
    """
    offsets, epochs, error = log.offsets(), log.view().epochs.entries, ""
    try:
        segments = log.segments()
    except TierUnavailableError as failure:
        segments, error = summaries(log.view()._replace(remote=None)), str(failure)
    bounds = (offsets.log_start, offsets.local_log_start, offsets.recovery_point)
    rows["offsets"].append((partition, *bounds, offsets.last_stable, offsets.high_watermark, offsets.log_end, error))
    rows["segments"] += [
        (partition, segment.base_offset, segment.end_offset, segment.size_bytes, _where(segment))
        for segment in segments
    ]
    rows["leader epochs"] += [(partition, entry.epoch, entry.start_offset) for entry in epochs]
    for producer in log.producers:
        transaction_start = producer.transaction_first_offset if producer.transaction_first_offset >= 0 else None
        last = (producer.last_sequence, producer.last_offset, transaction_start)
        rows["producers"].append((partition, producer.producer_id, producer.producer_epoch, *last))
    return error


def _where(summary: SegmentSummary) -> str:
    if summary.is_active:
        return "active"
    return " + ".join(
        word for word, is_stored in (("local", summary.is_local), ("remote", summary.is_remote)) if is_stored
    )
