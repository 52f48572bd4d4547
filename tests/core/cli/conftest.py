from __future__ import annotations

import pytest

from dump_runs import DumpRunner


@pytest.fixture
def dump_runner(capsys: pytest.CaptureFixture[str]) -> DumpRunner:
    return DumpRunner(capsys)
