"""Each method of each kind of component, wrong in each of five ways: no record is lost, and the error names the culprit."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from broken_bed import DISTRIBUTION, LISTENER, SOURCE, Bed, Outcome
from broken_parts import Breaker, Fault
from fault_table import METHODS, UNSEEN_LIES, documented, documented_unseen_lies
from stratalog.testing.s3 import LocalS3

InstallDistribution = Callable[..., None]

QUICK: Final = {
    ("RecordFormat.encode", Fault.LIES),
    ("Codec.compress", Fault.LIES),
    ("IndexFormat.builder", Fault.NONE),
    ("ExtraIndex.builder", Fault.TYPE),
    ("SegmentFile.append", Fault.LIES),
    ("ObjectStore.put_file", Fault.LIES),
    ("TierLayout.write", Fault.LIES),
    ("RecordFilter.judge", Fault.RAISES),
    ("SegmentFile.sync", Fault.HANGS),
}
CASES: Final = [
    pytest.param(
        method,
        fault,
        id=f"{method}-{fault.name.lower()}",
        marks=() if (method, fault) in QUICK else pytest.mark.long,
    )
    for method in METHODS
    for fault in Fault
]


# On S3, methods of other components do the same work as on a folder: one of each class is enough.
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


@pytest.fixture
def make_bed(tmp_path: Path, install_distribution: InstallDistribution) -> Callable[[str, Fault], Bed]:
    """Makes a bed whose breaker breaks this method in this way."""

    def make(method: str, fault: Fault) -> Bed:
        install_distribution(DISTRIBUTION, entry_points={"acme": "acme_parts"}, modules={"acme_parts": SOURCE})
        return Bed(tmp_path, Breaker(method, fault))

    return make


def test_the_page_explains_each_lie_that_is_unseen() -> None:
    assert documented_unseen_lies() == set(UNSEEN_LIES)


@pytest.mark.parametrize(("method", "fault"), CASES)
def test_a_method_that_is_wrong_while_the_engine_runs_loses_no_record_and_is_named(
    method: str, fault: Fault, make_bed: Callable[[str, Fault], Bed], caplog: pytest.LogCaptureFixture
) -> None:
    bed = make_bed(method, fault)
    with caplog.at_level(logging.WARNING):
        bed.fill()
        bed.use()
    outcome = _check(bed, caplog.text)
    assert outcome == documented(method, fault, outcome)


@pytest.mark.parametrize(("method", "fault"), CASES)
@pytest.mark.long
def test_a_method_that_is_wrong_when_the_engine_opens_after_a_crash_loses_no_record_and_is_named(
    method: str, fault: Fault, make_bed: Callable[[str, Fault], Bed], caplog: pytest.LogCaptureFixture
) -> None:
    bed = make_bed(method, fault)
    with caplog.at_level(logging.WARNING):
        bed.fill()
        bed.reopen()
    _check(bed, caplog.text)


@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("method", S3_METHODS)
@pytest.mark.long
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
    _check(bed, caplog.text)


def _check(bed: Bed, messages: str) -> Outcome:
    outcome = bed.outcome(messages)
    assert bed.steps.get("close") != "hangs"
    found = bed.sound_records()
    assert {place: found.get(place) for place in bed.acknowledged} == bed.acknowledged
    assert not bed.untyped
    if bed.breaker.fault is Fault.RAISES or (bed.breaker.fault is Fault.TYPE and bed.breaker.target != LISTENER):
        assert outcome is not Outcome.UNSEEN
    return outcome
