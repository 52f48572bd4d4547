"""``stratalog rebuild``: rebuild manifests from the objects of a bucket."""

from __future__ import annotations

from typing import Final

import click

from stratalog.cli.options import TierPlace, json_option, topics_option, uri_options
from stratalog.cli.output import Columns, Output
from stratalog.errors import ConfigError
from stratalog.tier.store.log_listing import select_topics
from stratalog.tier.upkeep.manifest_rebuild import RebuildReport

_COLUMNS: Final[Columns[RebuildReport]] = {
    "topic": lambda report: report.log.topic,
    "partition": lambda report: report.log.partition,
    "topic_id": lambda report: str(report.topic_id),
    "start_offset": lambda report: report.start_offset,
    "end_offset": lambda report: report.end_offset,
    "segments": lambda report: report.segments,
    "bytes": lambda report: report.size_bytes,
    "leader_epoch": lambda report: report.leader_epoch,
    "ignored": lambda report: len(report.ignored),
}


@click.command()
@uri_options
@topics_option
@click.option("--dry-run", is_flag=True, help="Show the manifests that would be rebuilt. Write nothing.")
@json_option
def rebuild(output: Output, place: TierPlace, topics: tuple[str, ...], *, dry_run: bool) -> int:
    """Rebuild the manifests of logs that have objects but no manifest in the tier at URI.

    Run the command again if it was interrupted.

    The command finds segments by their footers. It ignores objects that were replaced, and objects that were uploaded
    but never committed, and lists the ignored objects. It deletes nothing. No engine may write to these logs while the
    command runs. To repair a damaged root, use `stratalog verify URI --repair`.

    The exit code is 1 if the command ignored an object.
    """
    reports = list[RebuildReport]()
    with place.open_tier(read_only=dry_run) as tier:
        lost = tier.lost()
        if not (lost or tier.logs()):
            raise ConfigError(f"there are no objects of logs in {tier.uri}: correct the URI")
        names = select_topics(lost, topics or None, tier.uri, further_names=tier.logs() if topics else ())
        with output.progress("rebuilding", len(names)) as steps:
            for name in names:
                reports.append(tier.rebuild(name, dry_run=dry_run))
                steps.advance()
    output.table_of("would be rebuilt" if dry_run else "rebuilt", _COLUMNS, reports)
    ignored = [(*report.log, key, reason) for report in reports for key, reason in report.ignored]
    if ignored:
        output.table("ignored", ("topic", "partition", "key", "reason"), ignored)
    return 1 if ignored else 0
