"""Methods that are broken when an engine opens after a crash: no record is lost, and the error names the plugin."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from broken_bed import Bed
from broken_parts import Fault
from fault_table import METHODS

pytestmark = pytest.mark.long


@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("method", METHODS)
def test_a_method_that_is_wrong_when_the_engine_opens_after_a_crash_loses_no_record_and_is_named(
    method: str, fault: Fault, make_bed: Callable[[str, Fault], Bed], caplog: pytest.LogCaptureFixture
) -> None:
    bed = make_bed(method, fault)
    with caplog.at_level(logging.WARNING):
        bed.fill()
        bed.reopen()
    bed.checked_outcome(caplog.text)
