from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stratalog.testing.faults import StoreBench
from stratalog_local import stratalog_segment_stores


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[StoreBench]:
    """A place for a log directory; at the end no descriptor may be left open."""
    (provider,) = stratalog_segment_stores()
    bench = StoreBench(provider, str(tmp_path / "logs"))
    yield bench
    bench.close()
