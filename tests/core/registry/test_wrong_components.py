"""Each method of each component, broken in each of five ways: no record is lost, and the error names the plugin."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import pytest

from broken_bed import Bed
from broken_parts import Fault
from fault_table import METHODS, UNSEEN_LIES, documented, documented_unseen_lies

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
    outcome = bed.checked_outcome(caplog.text)
    assert outcome == documented(method, fault, outcome)
