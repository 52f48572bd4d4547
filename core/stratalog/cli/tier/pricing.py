"""Options for the prices of an object store, and the cost of one log in a tier."""

from __future__ import annotations

from typing import Final

import click

from stratalog.config.keys import flat_names
from stratalog.config.settings_sources import Settings
from stratalog.spi.commands import option_group
from stratalog.tier.read.remote_segment import RemoteSegment
from stratalog.tier.tier_log import TierLog
from stratalog.tier.upkeep.cost import PART_BYTES, Bill, Prices, bill

_DEFAULT = Prices()
_PART_BYTES_VARIABLE: Final = "STRATALOG_PLUGINS_S3_PART_BYTES"

price_options = option_group(
    "prices",
    lambda price_writes, price_reads, price_storage: Prices(price_writes, price_reads, price_storage),  # noqa: PLW0108 - the parameters have the options' names
    click.option("--price-storage", default=_DEFAULT.gib_month, help="Price of one GiB for one month."),
    click.option("--price-reads", default=_DEFAULT.thousand_reads, help="Price of 1,000 GET requests."),
    click.option("--price-writes", default=_DEFAULT.thousand_writes, help="Price of 1,000 PUT or LIST requests."),
)
"""``--price-writes``, ``--price-reads`` and ``--price-storage``: passed to the command as ``prices``."""


def upload_part_bytes(settings: Settings) -> int:
    """Return the size of a part of a multipart upload: ``part.bytes`` of ``[plugins.s3]``, or its default.

    An environment variable overrides the section. If the value is not a number, the default is returned. (The store
    raises an error for this value when the store is opened.)
    """
    section = flat_names(settings.plugins.get("s3", {}), "[plugins.s3]")
    part_bytes = settings.plugin_variables.get(_PART_BYTES_VARIABLE, section.get("part.bytes", PART_BYTES))
    try:
        return int(str(part_bytes))
    except ValueError:
        return PART_BYTES


def log_bill(log: TierLog, *, part_bytes: int, prices: Prices) -> Bill:
    """Read the whole manifest of a log in a tier, and return the log's cost. See ``bill`` for the other arguments."""
    root, segments = log.root, log.view().segments
    entries = (segment.entry for segment in segments if isinstance(segment, RemoteSegment))
    return bill(entries, root.version if root else 0, part_bytes=part_bytes, prices=prices)
