from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stratalog.spi.segment_store import LogFiles
from stratalog.testing.faults import StoreBench
from stratalog_local import stratalog_segment_stores


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[StoreBench]:
    """Yield a test bench with the place of a log directory. At the end, check that all descriptors are closed."""
    (provider,) = stratalog_segment_stores()
    bench = StoreBench(provider, str(tmp_path / "logs"))
    yield bench
    bench.close()


@pytest.fixture
def files(bench: StoreBench) -> Iterator[LogFiles]:
    """Yield the folder of one log, in an acquired directory."""
    with bench.acquired() as store:
        yield store.open_log("a-0", create=True)
