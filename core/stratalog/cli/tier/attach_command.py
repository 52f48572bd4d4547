"""``stratalog attach``: continue the logs of a tier on an empty disk."""

from __future__ import annotations

from typing import Final

import click

from stratalog.cli.options import TierPlace, check_log_directories, directories_option, json_option, uri_options
from stratalog.cli.output import Columns, Output
from stratalog.engine.open_engine import open_engine
from stratalog.tier.takeover.take_over import AttachedLog

_COLUMNS: Final[Columns[AttachedLog]] = {
    "topic": lambda log: log.log.topic,
    "partition": lambda log: log.log.partition,
    "topic_id": lambda log: str(log.topic_id),
    "leader_epoch": lambda log: log.leader_epoch,
    "log_start": lambda log: log.log_start,
    "next_offset": lambda log: log.log_end,
    "lost_offsets": lambda log: log.lost,
    "open_transactions": lambda log: log.open_transactions,
}


@click.command()
@uri_options
@directories_option("An empty log directory; can be repeated.")
@click.option(
    "--topic", "topics", multiple=True, help="Only this topic: its name, or NAME-ID with the topic id; can be repeated."
)
@json_option
def attach(output: Output, place: TierPlace, directories: tuple[str, ...], topics: tuple[str, ...]) -> int:
    """Take over every topic in the tier at URI into empty log directories. Missing directories are created.

    Each log continues after its last record in the tier. A new leader epoch fences the previous engine. Records that
    the previous engine had not offloaded are lost. `lost_offsets` is the distance from the end offset of the records in
    the tier to the high watermark that the tier recorded. Later records that were lost are not counted. If the command
    was interrupted, run it again.
    """
    check_log_directories(directories, place.settings())
    place.check_logs()
    with (
        output.bytes_progress("taking over") as progress,
        open_engine(
            directories or None,
            tier=place.uri,
            tier_options=place.tier_options,
            config=place.config,
            attach=topics or True,
            progress=progress,
        ) as engine,
    ):
        attached_logs = engine.attached
    output.table_of("taken over", _COLUMNS, attached_logs)
    return 0
