"""``stratalog restore``: copy the logs of a tier into a log directory."""

from __future__ import annotations

from typing import Final

import click

from stratalog.cli.options import (
    NamedDirectories,
    TierPlace,
    check_no_other_files,
    directory_options,
    json_option,
    uri_options,
)
from stratalog.cli.output import Columns, Output
from stratalog.cli.parameters import partition_offset, time_ms
from stratalog.engine.restore.restore import RestoredLog, RestoreRequest, restore
from stratalog.model.names import TopicPartition
from stratalog.model.timestamps import from_unix_ms
from stratalog.spi.commands import option_group

_COLUMNS: Final[Columns[RestoredLog]] = {
    "topic": lambda log: log.source.topic,
    "partition": lambda log: log.source.partition,
    "restored_as": lambda log: str(log.log),
    "version": lambda log: log.version,
    "log_start": lambda log: log.log_start,
    "log_end": lambda log: log.log_end,
    "segments": lambda log: log.segments,
    "bytes": lambda log: log.size_bytes,
    "requests": lambda log: log.requests,
    "copied": lambda log: log.copied,
}


def _renaming(text: str) -> tuple[str, str]:
    old, _, new = text.partition("=")
    if not old or not new:
        raise click.BadParameter(f"{old!r} is not of the form OLD=NEW")
    return old, new


def _request(
    overwrite: tuple[str, ...],
    renamings: tuple[tuple[str, str], ...],
    to_time_ms: int | None,
    to_offsets: tuple[tuple[TopicPartition, int], ...],
    topics: tuple[str, ...],
) -> RestoreRequest:
    return RestoreRequest(
        topics=topics or None,
        to_offsets=dict(to_offsets),
        to_time=None if to_time_ms is None else from_unix_ms(to_time_ms),
        rename=dict(renamings),
        overwrite=overwrite,
    )


_request_options = option_group(
    "request",
    _request,
    click.option(
        "--overwrite", multiple=True, metavar="TOPIC",
        help="If DIR has records of this topic, replace them; can be repeated.",
    ),
    click.option(
        "--as", "renamings", type=_renaming, multiple=True, metavar="OLD=NEW",
        help="Restore topic OLD under the name NEW; can be repeated.",
    ),
    click.option(
        "--to-time", "to_time_ms", type=time_ms, metavar="TIME",
        help="End each log before its first record with this timestamp or a later one: ISO 8601, or ms since 1970.",
    ),
    click.option(
        "--to-offset", "to_offsets", type=partition_offset, multiple=True, metavar="TOPIC-PARTITION:OFFSET",
        help="Exclusive end offset of the restored log; can be repeated.",
    ),
    click.option(
        "--topic", "topics", multiple=True,
        help="Only this topic: its name, or NAME-ID with the topic id; can be repeated.",
    ),
)  # fmt: skip


@click.command("restore")
@uri_options
@directory_options("[DIR]", "The log directory, instead of the argument DIR.")
@_request_options
@click.option("--dry-run", is_flag=True, help="Show the logs that would be copied. Write nothing.")
@json_option
def restore_command(
    output: Output, place: TierPlace, directories: NamedDirectories, request: RestoreRequest, *, dry_run: bool
) -> int:
    """Copy the logs in the tier at URI into DIR, where an engine or a Kafka broker can open them.

    The command does not change the tier. DIR can be the log directory of a stopped broker. In this case, first create
    the topics in the broker's cluster. The restored logs then have the topic ids of the cluster. Run the command again
    if it was interrupted. It then copies only missing files.
    """
    directory = directories.path
    check_no_other_files(directory)
    place.check_logs()
    with output.bytes_progress("restoring") as progress:
        restored_logs = restore(
            place.uri,
            directory,
            request,
            dry_run=dry_run,
            tier_options=place.tier_options,
            config=place.config,
            progress=progress,
        )
    output.table_of("would be restored" if dry_run else "restored", _COLUMNS, restored_logs)
    for log in restored_logs:
        requested_end = (request.to_offsets or {}).get(log.source, log.log_end)
        if log.log_end < requested_end:
            output.note(
                f"{log.log} ends at {log.log_end}, not at {requested_end}: the batch at offset {log.log_end} contains "
                "later records, and is left out as a whole"
            )
        if log.open_transactions:
            output.note(
                f"{log.log} ends with {log.open_transactions} open transactions: read_committed readers stop before "
                "them until they end"
            )
    return 0
