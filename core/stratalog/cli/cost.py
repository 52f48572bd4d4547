"""``stratalog tier cost``: what a topic in a tier would cost, before it is made."""

from __future__ import annotations

import os
from dataclasses import fields

import click

from stratalog.cli.options import json_option
from stratalog.cli.output import Output, size_text
from stratalog.cli.topics import split_setting
from stratalog.config.files import read_settings
from stratalog.config.topic import TopicConfig
from stratalog.tier.cost import PART_BYTES, Estimate, Prices, estimate

_DEFAULT = Prices()


@click.command("cost")
@click.option(
    "--write-rate", required=True, type=click.FloatRange(0), help="Bytes a second of the whole topic, compressed."
)
@click.option("--partitions", default=1, show_default=True, type=click.IntRange(1), help="How many the topic has.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A topic setting; can be repeated.")
@click.option("--price-writes", default=_DEFAULT.thousand_writes, show_default=True, help="Of 1,000 PUTs or LISTs.")
@click.option("--price-reads", default=_DEFAULT.thousand_reads, show_default=True, help="Of 1,000 GETs.")
@click.option("--price-storage", default=_DEFAULT.gib_month, show_default=True, help="Of a GiB for a month.")
@click.option("--config", type=click.Path(dir_okay=False), help="A stratalog.toml with settings.")
@json_option
def show_cost(
    output: Output,
    write_rate: float,
    partitions: int,
    settings: tuple[str, ...],
    price_writes: float,
    price_reads: float,
    price_storage: float,
    config: str | None,
) -> int:
    """Estimate what a month of a topic costs in requests and storage on S3, from its settings.

    A tier in which nothing is written costs no requests. Reading records back comes on top. The exit code is 1 if the
    settings make segments so small that requests are dear beside storage.
    """
    known = read_settings(config, os.environ)
    values = {**known.topic_defaults, **dict(split_setting(text) for text in settings)}
    part_bytes = known.plugins.get("s3", {}).get("part.bytes", PART_BYTES)
    found = estimate(
        TopicConfig.from_mapping(values, "--set"),
        write_rate,
        partitions=partitions,
        part_bytes=part_bytes if isinstance(part_bytes, int) else PART_BYTES,
        prices=Prices(price_writes, price_reads, price_storage),
    )
    if output.as_json:
        output.item({field.name: getattr(found, field.name) for field in fields(Estimate)})
    else:
        _tell(output, found)
    return 1 if found.warning else 0


def _tell(output: Output, found: Estimate) -> None:
    output.line(f"segments   {found.segments:,} a month, of {size_text(found.segment_bytes)}")
    output.line(
        f"requests   {found.writes:,} writes, {found.reads:,} reads a month: "
        f"{found.writes_per_gib:,.1f} writes a GiB, none while nothing is written"
    )
    output.line(f"stored     {size_text(found.stored_bytes)}")
    output.line(f"cost       {found.request_cost:,.2f} for requests, {found.storage_cost:,.2f} for storage a month")
    if found.warning:
        output.line(f"warning    {found.warning}")
