"""``stratalog tier cost``: estimate the cost of a new topic in a tier, or compute the cost of existing topics."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields

import click

from stratalog.cli.options import TierPlace, json_option, tier_logs
from stratalog.cli.output import Output, size_text
from stratalog.cli.parameters import NumberRange, split_setting
from stratalog.cli.tier.pricing import log_bill, price_options, upload_part_bytes
from stratalog.config.settings_sources import read_settings
from stratalog.config.topic import TopicConfig
from stratalog.errors import StorageError
from stratalog.registry.registry import Registry
from stratalog.spi.commands import config_option, tier_option
from stratalog.tier.tier_log import TierLog
from stratalog.tier.upkeep.cost import Bill, Estimate, Prices, estimate

_BILL_FIELDS = tuple(field.name for field in fields(Bill))
_SHOWN = (
    "topic", "partition", "segments", "log_bytes", "stored_bytes", "smallest_bytes", "largest_bytes", "writes",
    "writes_per_gib", "request_cost", "storage_cost", "warning", "error",
)  # fmt: skip
_MONEY = frozenset({"request_cost", "storage_cost"})


@click.command("cost")
@click.argument("uri", required=False)
@click.argument("topic", required=False)
@click.option(
    "--write-rate", type=NumberRange(0),
    help="For an estimate, without URI: number of bytes (after compression) that are written to the topic each second.",
)  # fmt: skip
@click.option(
    "--partitions", default=1, type=click.IntRange(1), help="For an estimate: number of partitions of the topic."
)
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A topic setting; can be repeated.")
@price_options
@config_option
@tier_option
@json_option
def show_cost(
    output: Output,
    uri: str | None,
    topic: str | None,
    *,
    write_rate: float | None,
    partitions: int,
    settings: tuple[str, ...],
    prices: Prices,
    config: str | None,
    tier_options: Mapping[str, object],
) -> int:
    """Estimate a topic's cost for a month, or compute a tier's cost.

    Without URI, the command estimates the cost on S3 from the topic's settings. With URI, it reads the whole manifest
    of each log. `writes` is the number of requests that uploaded and committed the segments, computed from the sizes of
    the objects. `request_cost` is the cost of these requests, which is paid once. `storage_cost` is for one month.

    A tier to which nothing is written costs no requests. The cost of reading records is not included. The exit code is
    1 if segments are so small that requests cost much more than storage, or if a log cannot be read.
    """
    if (uri is None) == (write_rate is None):
        raise click.UsageError("give the URI of a tier, or --write-rate BYTES for an estimate")
    if uri is not None:
        if settings or partitions != 1:
            raise click.UsageError("--set and --partitions are for an estimate: leave them out with a URI")
        return _show_tier(output, TierPlace(uri, config, tier_options), topic, prices)
    if tier_options:
        raise click.UsageError("--tier-option needs the URI of a tier: an estimate does not use a store")
    assert write_rate is not None
    config_settings = read_settings(config, os.environ)
    defaults = TopicConfig(sections=Registry.of(config_settings).topic_sections())
    topic_config = defaults.replaced({**config_settings.topic_defaults, **dict(map(split_setting, settings))}, "--set")
    topic_estimate = estimate(
        topic_config, write_rate, partitions=partitions, part_bytes=upload_part_bytes(config_settings), prices=prices
    )
    if output.as_json:
        output.item({field.name: getattr(topic_estimate, field.name) for field in fields(Estimate)})
    else:
        _show_estimate(output, topic_estimate)
    return 1 if topic_estimate.warning else 0


def _show_tier(output: Output, place: TierPlace, topic: str | None, prices: Prices) -> int:
    """Print a row for each log. If a log cannot be read, the last column of its row has the error."""
    part_bytes = upload_part_bytes(place.settings())
    with place.reader() as reader:
        rows = [
            {"topic": log.name.topic, "partition": log.name.partition, **_costs(log, part_bytes, prices)}
            for log in tier_logs(reader, topic, None)
        ]
    if output.as_json:
        for row in rows:
            output.item(row)
    else:
        output.table("cost", _SHOWN, [[_cell(name, row[name]) for name in _SHOWN] for row in rows])
    return 1 if any(row["warning"] or row["error"] for row in rows) else 0


def _costs(log: TierLog, part_bytes: int, prices: Prices) -> dict[str, object]:
    try:
        costs = log_bill(log, part_bytes=part_bytes, prices=prices)
    except StorageError as error:
        return {**dict.fromkeys(_BILL_FIELDS), "error": str(error)}
    return {**{name: getattr(costs, name) for name in _BILL_FIELDS}, "error": ""}


def _cell(name: str, value: object) -> object:
    return f"{value:,.4f}" if name in _MONEY and isinstance(value, float) else value


def _show_estimate(output: Output, estimated: Estimate) -> None:
    output.line(f"segments   {estimated.segments:,} a month, of {size_text(estimated.segment_bytes)}")
    output.line(
        f"requests   {estimated.writes:,} writes, {estimated.reads:,} reads a month: "
        f"{estimated.writes_per_gib:,.1f} writes for each GiB, none while no records are written"
    )
    output.line(f"stored     {size_text(estimated.stored_bytes)}")
    output.line(
        f"cost       {estimated.request_cost:,.2f} for requests, {estimated.storage_cost:,.2f} for storage a month"
    )
    if estimated.warning:
        output.line(f"warning    {estimated.warning}")
