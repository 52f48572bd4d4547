"""Decoding of entries with forged sizes: the process needs at most the limit and 4 MiB more memory."""

from __future__ import annotations

import os
import sys

import pytest

import fuzz_memory
import twins


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the peak of a process is read from /proc")
@pytest.mark.skipif(bool(os.environ.get("STRATALOG_SANITIZED")), reason="a sanitizer takes memory of its own")
def test_no_forged_batch_takes_more_memory_than_the_limit_and_4_mib() -> None:
    costs = fuzz_memory.measure()
    assert {cost.twin for cost in costs} == {kernels.name for kernels in twins.twins()}
    assert [cost for cost in costs if cost.grown_bytes > fuzz_memory.CAP_BYTES] == []
    assert [cost for cost in costs if not cost.error] == []
    verdicts = {(cost.case, cost.error) for cost in costs}
    assert len(verdicts) == len({cost.case for cost in costs})
    assert max(cost.grown_bytes for cost in costs) > fuzz_memory.LIMIT_BYTES - (1 << 20), "nothing was measured"
