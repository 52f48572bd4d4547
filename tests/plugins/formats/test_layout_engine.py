"""Each layout under a whole engine: offloaded, evicted, read back from the tier alone."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

import stratalog

KEY = base64.b64encode(bytes(32)).decode()


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, object]:
    keys = tmp_path / "keys.toml"
    keys.write_text(f'active = "k"\n[keys]\nk = "{KEY}"\n', encoding="utf-8")
    return {
        "plugins": {
            "encrypted": {"keys.file": str(keys), "over": "chunked"},
            "chunked": {"chunk.bytes": 4096},
        }
    }


@pytest.mark.parametrize("layout", ["single", "plain", "chunked", "encrypted"])
def test_records_come_back_from_the_tier(tmp_path: Path, settings: dict[str, object], layout: str) -> None:
    tier = tmp_path / "tier"
    tier.mkdir()
    config = {
        "remote.storage.enable": True,
        "tier.layout": layout,
        "retention.ms": -1,
        "local.retention.ms": 1,
        "segment.bytes": 20_000,
    }
    values = [f"value {number} ".encode() * 20 for number in range(200)]
    with stratalog.open_engine(tmp_path / "data", tier=f"file://{tier}", config=settings) as engine:
        engine.create_topic("orders", config=config)
        log = engine.log("orders", 0)
        for value in values:
            log.append([stratalog.Record(key=b"k", value=value, timestamp_ms=1_000)])
        log.roll()
        engine.offload()
        engine.apply_retention()
        assert log.offsets().local_log_start > 0, "the records are in the tier only"
        assert [record.value for record in log.records()] == values
    with stratalog.open_reader(f"file://{tier}", config=settings) as reader:
        assert [record.value for record in reader.log("orders", 0).records()] == values
