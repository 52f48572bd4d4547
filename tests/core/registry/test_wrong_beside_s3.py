"""Broken methods of an engine with a tier on S3: no record is lost, and the error names the plugin."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import pytest

from broken_bed import Bed
from broken_parts import Fault
from fault_table import METHODS
from stratalog.testing.s3 import LocalS3

pytestmark = pytest.mark.long

# With a tier on S3, methods of other components do the same work as with a folder. One method of each class is enough.
_OF_TIERS: Final = ("ObjectStore", "TierLayout")
S3_METHODS: Final = [method for method in METHODS if method.startswith(_OF_TIERS)] + [
    "RecordFormat.scan",
    "Codec.decompress",
    "IndexFormat.reader",
    "ExtraIndexBuilder.finish",
    "LogFiles.list",
    "SegmentFile.read",
    "IndexFile.view",
    "CleanupPolicy.plan",
    "RecordFilter.judge",
]


@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("method", S3_METHODS)
def test_a_method_that_is_wrong_beside_a_tier_on_s3_loses_no_record_and_is_named(
    method: str,
    fault: Fault,
    make_bed: Callable[[str, Fault], Bed],
    caplog: pytest.LogCaptureFixture,
    local_s3: LocalS3,
    s3_tier: str,
) -> None:
    bed = make_bed(method, fault)
    bed.tier, bed.tier_options = s3_tier, local_s3.options
    with caplog.at_level(logging.WARNING):
        bed.fill()
        bed.use()
    bed.checked_outcome(caplog.text)
