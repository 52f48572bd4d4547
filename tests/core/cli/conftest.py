from __future__ import annotations

from functools import partial

import pytest

from command_runs import RunCommand, run_command
from dump_runs import DumpRunner


@pytest.fixture
def stratalog(capsys: pytest.CaptureFixture[str]) -> RunCommand:
    """Return a function that runs a command, and returns its exit code and output."""
    return partial(run_command, capsys)


@pytest.fixture
def dump_runner(capsys: pytest.CaptureFixture[str]) -> DumpRunner:
    return DumpRunner(capsys)
