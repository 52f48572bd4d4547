"""``stratalog retention``: delete and evict what the settings let go."""

from __future__ import annotations

import click

from stratalog.cli.options import Place, json_option, place_options
from stratalog.cli.output import Output


@click.command()
@click.option("--dry-run", is_flag=True, help="Only say what would go, and why.")
@place_options
@json_option
def retention(place: Place, output: Output, *, dry_run: bool) -> None:
    """Apply retention to both tiers: by time, by size, by log start offset."""
    with place.engine() as engine:
        results = engine.apply_retention(dry_run=dry_run)
    rows = [
        (
            result.log.topic,
            result.log.partition,
            result.deleted_segments,
            result.deleted_bytes,
            result.evicted_segments,
            result.evicted_bytes,
            result.log_start,
            "; ".join(result.reasons),
        )
        for result in results
    ]
    columns = (
        "topic",
        "partition",
        "deleted_segments",
        "deleted_bytes",
        "evicted_segments",
        "evicted_bytes",
        "log_start",
        "reasons",
    )
    output.table("would go" if dry_run else "gone", columns, rows)
