"""``stratalog offload``: move closed segments to the tier."""

from __future__ import annotations

import click

from stratalog.cli.options import Place, json_option, place_options
from stratalog.cli.output import Output
from stratalog.engine.offload import OffloadResult


@click.command()
@click.option("--roll", is_flag=True, help="Close every active segment first, so that everything goes.")
@place_options
@json_option
def offload(place: Place, output: Output, *, roll: bool) -> None:
    """Move every closed segment to the tier. Local files stay until `stratalog retention` lets them go."""
    with place.engine() as engine:
        names = engine.partitions()
        results: list[OffloadResult] = []
        with output.progress("offloading", len(names)) as bar:
            for name in names:
                if roll:
                    engine.log(*name).roll()
                results.extend(engine.offload([name]))
                bar.advance()
    rows = [
        (result.log.topic, result.log.partition, result.segments, result.size_bytes, result.tier_end)
        for result in results
    ]
    output.table("offloaded", ("topic", "partition", "segments", "bytes", "tier_end_offset"), rows)
