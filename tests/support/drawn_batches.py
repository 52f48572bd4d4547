"""Strategies for random records, and the record format in Python that encodes them."""

from __future__ import annotations

from typing import Final

from hypothesis import strategies as st

import twins
from stratalog import Record
from stratalog_formats.kernels.dispatch import PYTHON
from stratalog_formats.records.batches import BatchFormat

PLAIN: Final = BatchFormat(twins.TABLE, PYTHON)
NOW_MS: Final = 1_700_000_000_000

stamps = st.integers(-1, (1 << 63) - 1) | st.integers(NOW_MS, NOW_MS + 100_000)
blobs = st.none() | st.binary(max_size=70)
records = st.lists(
    st.builds(
        Record,
        timestamp_ms=stamps,
        key=blobs,
        value=blobs,
        headers=st.lists(st.tuples(st.text(max_size=5), blobs), max_size=2).map(tuple),
    ),
    min_size=1,
    max_size=10,
)
