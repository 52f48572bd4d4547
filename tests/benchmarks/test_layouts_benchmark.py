"""The benchmark of layouts runs: each layout stores all records, and each side counts them."""

from __future__ import annotations

import pytest

from quick_run import quick_run

pytest.importorskip("duckdb", reason="the extra sql is not installed")


def test_each_layout_and_side_has_a_figure() -> None:
    lines = [line for line in quick_run("layouts.py") if line["kind"] == "figures"]
    for codec in ("uncompressed", "zstd"):
        offloads = [line["side"] for line in lines if line["case"].startswith(f"layouts/offload-{codec}-")]
        assert offloads == ["single", "plain", "chunked", "parquet"]
        counts = [line["side"] for line in lines if line["case"] == f"layouts/count-{codec}"]
        assert counts[-1] == "DuckDB over the bucket"
        assert len(counts) == 3
    assert [line["side"] for line in lines if line["case"] == "layouts/search"] == ["bloom", "without"]
