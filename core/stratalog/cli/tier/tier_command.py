"""``stratalog tier``: show the contents, history and cost of a tier, and maintain the tier."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import astuple
from itertools import islice

import click

from stratalog.cli.options import (
    LogPlace,
    TierPlace,
    check_tier,
    directories_option,
    json_option,
    place_options,
    tier_logs,
    topics_option,
    uri_options,
)
from stratalog.cli.output import Output, moment
from stratalog.cli.parameters import MANY
from stratalog.cli.tier.cost_command import show_cost
from stratalog.errors import StorageError
from stratalog.model.names import TopicId
from stratalog.reading.open_reader import open_settled
from stratalog.reading.reader import Reader
from stratalog.segment.readable import ReadableSegment
from stratalog.tier.collect_all import TierCollection
from stratalog.tier.manifest.root import Root
from stratalog.tier.read.remote_segment import RemoteSegment
from stratalog.tier.store.log_listing import select_topics
from stratalog.tier.tier_log import TierLog
from stratalog.tier.upkeep.collect import CollectReport
from stratalog.tier.upkeep.tier_diff import Side, differences


@click.group()
def tier() -> None:
    """Show the logs, segments, history and cost of a tier, and maintain it."""


tier.add_command(show_cost)


@tier.command("ls")
@uri_options
@click.argument("topic", required=False)
@click.argument("partition", required=False, type=click.IntRange(0))
@click.option("--version", type=click.IntRange(1), help="Show this version of the partition's manifest.")
@json_option
def list_tier(output: Output, place: TierPlace, topic: str | None, partition: int | None, version: int | None) -> int:
    """List the logs of a tier, or the segments of a partition.

    Without PARTITION, the command lists the logs in the tier at URI, or only the logs of TOPIC. With PARTITION, it
    lists the segments of this partition. The exit code is 1 if a log cannot be read.
    """
    if version is not None and partition is None:
        raise click.UsageError("--version needs TOPIC and PARTITION")
    with place.reader() as reader:
        logs = tier_logs(reader, topic, partition)
        if partition is not None:
            for log in logs:
                output.table("segments", SEGMENT_COLUMNS, _segments(log, version))
            return 0
        if not logs:
            output.note(str(place.no_logs_error()))
        rows = [_log_row(log) for log in logs]
        output.table("logs", LOG_COLUMNS, rows)
        return 1 if any(row[-1] for row in rows) else 0


@tier.command("log")
@uri_options
@click.argument("topic")
@click.argument("partition", type=click.IntRange(0))
@click.option(
    "--count", "-c", "--limit", "limit", metavar="N", default=50, type=MANY, help="Maximum number of commits."
)
@json_option
def show_history(output: Output, place: TierPlace, topic: str, partition: int, limit: int) -> None:
    """List the commits of a partition in a tier, newest first.

    Each commit creates a new version of the partition's manifest. The list has the version, time, leader epoch and
    reason of each commit. The collector removes a commit tier.history.ms after the next commit, but at the earliest
    after an hour.
    """
    with place.reader() as reader:
        for log in tier_logs(reader, topic, partition):
            rows = [_commit_row(root) for root in islice(log.history(), limit)]
            output.table("history", COMMIT_COLUMNS, rows)


@tier.command("collect")
@place_options
@json_option
def collect(place: LogPlace, output: Output) -> None:
    """Delete old objects from the tier of an engine's logs.

    The command opens an engine. It deletes old manifest roots of the engine's logs, and the objects that only these
    roots name. A running engine does this in the background.
    """
    with place.engine() as engine:
        check_tier(engine)
        report = engine.collect()
    _print_collected(output, report)


@tier.command("gc")
@uri_options
@topics_option
@json_option
def collect_alone(output: Output, place: TierPlace, topics: tuple[str, ...]) -> None:
    """Delete old objects from a tier without an engine.

    Use it for archives, and for tiers to which jobs write. The command deletes manifest roots that were superseded more
    than tier.history.ms ago, the objects that only these roots name, deleted topics, and unfinished uploads of older
    leader epochs. The unfinished uploads of the newest epoch are deleted by their writer. Engines, archivers and jobs
    may run at the same time.
    """
    with place.open_tier(read_only=False) as writable_tier:
        names = select_topics(writable_tier.logs(), topics or None, place.uri)
        with output.progress("collecting", len(names)) as steps:
            logs = ((writable_tier.log(*name), None) for name in names)
            collection = TierCollection(place.settings().engine.tier_history_ms)
            report = collection.collect_all(logs, lambda _: steps.advance())
    _print_collected(output, report)


def _print_collected(output: Output, report: CollectReport) -> None:
    columns = ("roots", "objects", "orphans", "left_for_later")
    output.table("collected", columns, [(report.roots, report.objects, report.orphans, report.left)])


@tier.command("rewrap")
@uri_options
@topics_option
@json_option
def rewrap(output: Output, place: TierPlace, topics: tuple[str, ...]) -> None:
    """Encrypt a tier's data keys with the active key-encryption key.

    The objects of the segments do not change. Run the command again if it was interrupted. Engines may run at the same
    time. Keep the old key-encryption key: reads of old states of the tier (as_of) and `stratalog rebuild` need it.
    """
    with place.open_tier(read_only=False) as writable_tier:
        names = select_topics(writable_tier.logs(), topics or None, place.uri)
        rows = list[tuple[object, ...]]()
        with output.progress("rewrapping", len(names)) as steps:
            for name in names:
                report = writable_tier.log(*name).rewrap()
                rows.append((*name.log, str(name.topic_id), report.segments, report.rewrapped))
                steps.advance()
    output.table("rewrapped", ("topic", "partition", "topic_id", "segments", "rewrapped"), rows)


@tier.command("diff")
@uri_options
@click.argument("topic")
@click.argument("partition", type=click.IntRange(0))
@directories_option("Log directory to compare with the tier; can be repeated.", exists=True)
@click.option(
    "--from", "older", type=click.IntRange(1), help="Version of the manifest to compare with the version of --to."
)
@click.option(
    "--to", "newer", type=click.IntRange(1),
    help="Version of the manifest to which --dir or --from is compared. Default: the newest.",
)  # fmt: skip
@click.option("--all", "with_common", is_flag=True, help="Also list segments that are the same on both sides.")
@json_option
def show_differences(
    output: Output,
    place: TierPlace,
    topic: str,
    partition: int,
    directories: tuple[str, ...],
    older: int | None,
    newer: int | None,
    *,
    with_common: bool,
) -> int:
    """Compare two manifest versions, or a directory with a tier.

    The command compares the segments of a PARTITION. `left` is the directory, or the version of --from. `right` is the
    version of --to in the tier. Local disk normally lacks evicted segments, and the tier lacks segments that are not
    offloaded yet. The exit code is 1 if there are differences.
    """
    if bool(directories) == (older is not None):
        raise click.UsageError("nothing to compare the tier with: add --dir DIRECTORY or --from VERSION")
    with contextlib.ExitStack() as stack:
        reader = stack.enter_context(place.reader())
        left_segments: Iterable[ReadableSegment]
        if not directories:
            assert older is not None
            remote_log = _log_of(reader, topic, partition, None)
            left_segments = remote_log.view_as_of(older).segments
        else:
            local = stack.enter_context(open_settled(directories[0], place.settings(), other_paths=directories[1:]))
            log = local.log(topic, partition)
            remote_log, left_segments = _log_of(reader, topic, partition, log.topic_id), log.view().segments
        right_segments = (remote_log.view() if newer is None else remote_log.view_as_of(newer)).segments
        rows = [astuple(row) for row in differences(left_segments, right_segments, with_common=with_common)]
    output.table("segments", ("side", "base_offset", "end_offset", "bytes", "name"), rows)
    return 1 if any(row[0] != Side.BOTH for row in rows) else 0


def _log_of(reader: Reader, topic: str, partition: int, topic_id: TopicId | None) -> TierLog:
    """Return a log of the reader's tier; raise UnknownTopicError if there is none.

    If the tier has several topics of this name, return the log of the topic with the id ``topic_id``, or of the newest
    topic if none has this id.
    """
    logs = {log.topic_id: log for log in tier_logs(reader, topic, partition)}
    if len(logs) == 1:
        return next(iter(logs.values()))
    if topic_id not in logs:
        topic_id = reader.log(topic, partition).topic_id
    assert topic_id is not None  # each log of a tier has one
    return logs[topic_id]


LOG_COLUMNS = (
    "topic", "partition", "topic_id", "version", "leader_epoch", "log_start", "end_offset", "segments", "bytes", "pages",
    "error",
)  # fmt: skip
SEGMENT_COLUMNS = ("base_offset", "end_offset", "bytes", "max_time", "layout", "leader_epochs", "key")
COMMIT_COLUMNS = (
    "version", "time", "leader_epoch", "change", "reason", "log_start", "end_offset", "segments", "bytes", "commit_id",
)  # fmt: skip


def _log_row(log: TierLog) -> tuple[object, ...]:
    name = (*log.name, str(log.topic_id))
    try:
        root = log.root
    except StorageError as error:
        return (*name, *[None] * 7, str(error))
    if root is None:
        return (*name, 0, None, 0, 0, 0, 0, 0, "")
    numbers = (root.version, root.leader_epoch, root.log_start, root.end_offset, root.segments, root.size_bytes)
    return (*name, *numbers, len(root.pages), "")


def _segments(log: TierLog, version: int | None) -> Iterator[tuple[object, ...]]:
    view = log.view() if version is None else log.view_as_of(version)
    for segment in view.segments:
        assert isinstance(segment, RemoteSegment)
        info = segment.info
        bounds = (info.base_offset, info.end_offset, info.size_bytes, moment(info.max_timestamp_ms))
        epochs = ",".join(f"{entry.epoch}@{entry.start_offset}" for entry in info.leader_epochs)
        yield (*bounds, segment.entry.layout, epochs, segment.label)


def _commit_row(root: Root) -> tuple[object, ...]:
    numbers = (root.log_start, root.end_offset, root.segments, root.size_bytes)
    return (
        root.version, moment(root.created_ms), root.leader_epoch, root.change, root.reason, *numbers, root.commit_id
    )  # fmt: skip
