"""``stratalog report``: write one HTML file about a log directory or a tier."""

from __future__ import annotations

from pathlib import Path

import click

from stratalog import __version__
from stratalog.cli.options import LogPlace, view_options
from stratalog.cli.output import Output, write_file
from stratalog.cli.parameters import NamedPath
from stratalog.cli.tier.pricing import price_options, upload_part_bytes
from stratalog.cli.views.overview import Detail, Overview, collect
from stratalog.cli.views.page import attention, bounds_of, render
from stratalog.env.clock import SystemClock
from stratalog.tier.upkeep.cost import Prices


@click.command()
@click.option(
    "--output", "-o", "file", default="report.html", type=NamedPath(dir_okay=False, path_type=Path),
    help="The file to write.",
)  # fmt: skip
@click.option(
    "--orphans/--no-orphans", default=True,
    help="Search the tier for orphans. This lists the objects of the tier, and reads every manifest root.",
)  # fmt: skip
@price_options
@view_options
def report(place: LogPlace, prices: Prices, *, file: Path, orphans: bool) -> int:
    """Write one HTML file about a log directory or a tier: segments, next actions of cleaning, sizes, epochs, cost.

    The file needs no network and no script. The command does not lock or change the logs, and can run while a broker or
    an engine is running. The exit code is 1 if a log cannot be read. The report then shows the other logs.
    """
    detail = Detail(bill=True, orphans=orphans, prices=prices, part_bytes=upload_part_bytes(place.settings()))
    with place.reader() as reader:
        overview = collect(reader, SystemClock(), detail)
    write_file(file, report_page(overview, prices))
    output = Output(as_json=False)
    output.line(f"{file}: {len(overview.logs)} partitions of {len(overview.topics())} topics")
    return 1 if any(log.error for log in overview.logs) else 0


def report_page(overview: Overview, prices: Prices) -> str:
    """Return the report of ``stratalog report`` as one HTML document."""
    topics = overview.topics()
    priced_logs = [log for log in overview.logs if log.tier is not None and log.tier.bill is not None]
    return render(
        "report.html",
        title=f"stratalog report of {overview.location}",
        version=__version__,
        overview=overview,
        topics=topics,
        bounds={topic: bounds_of(logs) for topic, logs in topics.items()},
        warnings=list(attention(overview)),
        priced=priced_logs,
        bills=[log.tier.bill for log in priced_logs if log.tier is not None],
        prices=prices,
    )
