"""Each layout in a whole engine: segments are offloaded, evicted, and read from the tier only."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

import stratalog
from stratalog.cleaning.compact.tier_range import CommittedPublisher
from stratalog.cli.app import run
from stratalog.errors import ConfigError

KEY = base64.b64encode(bytes(32)).decode()


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, object]:
    keys = tmp_path / "keys.toml"
    keys.write_text(f'active = "k"\n[keys]\nk = "{KEY}"\n', encoding="utf-8")
    keys.chmod(0o600)
    return {
        "plugins": {
            "encrypted": {"keys.file": str(keys), "over": "chunked"},
            "chunked": {"chunk.bytes": 4096},
        }
    }


@pytest.mark.parametrize("layout", ["single", "plain", "chunked", "encrypted", "parquet"])
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


def test_a_key_is_replaced_without_touching_an_object_while_an_engine_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys, tier, settings = tmp_path / "keys.toml", tmp_path / "tier", tmp_path / "stratalog.toml"
    next_key = base64.b64encode(bytes([7] * 32)).decode()
    keys.write_text(f'active = "k"\n[keys]\nk = "{KEY}"\n', encoding="utf-8")
    keys.chmod(0o600)
    settings.write_text(f'[plugins.encrypted]\n"keys.file" = "{keys}"\n', encoding="utf-8")
    tier.mkdir()
    uri = f"file://{tier}"
    with stratalog.open_engine(tmp_path / "data", tier=uri, config=settings) as engine:
        engine.create_topic("orders", config={"tier.layout": "encrypted", "retention.ms": -1})
        log = engine.log("orders", 0)
        log.append([stratalog.Record(value=b"one")])
        log.roll()
        engine.offload()
        objects = {path: path.read_bytes() for path in tier.rglob("*.seg")}
        keys.write_text(f'active = "next"\n[keys]\nk = "{KEY}"\nnext = "{next_key}"\n', encoding="utf-8")
        for expected in (1, 0):
            assert run(["tier", "rewrap", uri, "--config", str(settings), "--json"]) == 0
            (row,) = map(json.loads, capsys.readouterr().out.splitlines())
            assert (row["topic"], row["segments"], row["rewrapped"]) == ("orders", 1, expected)
        log.append([stratalog.Record(value=b"two")])
        log.roll()
        engine.offload()
    assert objects.items() <= {path: path.read_bytes() for path in tier.rglob("*.seg")}.items()
    keys.write_text(f'active = "next"\n[keys]\nnext = "{next_key}"\n', encoding="utf-8")
    with stratalog.open_reader(uri, config=settings) as reader:
        assert [record.value for record in reader.log("orders", 0).records()] == [b"one", b"two"]
    with stratalog.open_reader(uri, config=settings, as_of=1) as reader, pytest.raises(ConfigError, match="no key 'k'"):
        list(reader.log("orders", 0).records())


def test_an_erasure_is_not_complete_if_a_rewrap_replaced_its_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proof once claimed that the key is gone, although its segment was still in the tier."""
    keys, tier, settings = tmp_path / "keys.toml", tmp_path / "tier", tmp_path / "stratalog.toml"
    next_key = base64.b64encode(bytes([7] * 32)).decode()
    keys.write_text(f'active = "k"\n[keys]\nk = "{KEY}"\nnext = "{next_key}"\n', encoding="utf-8")
    keys.chmod(0o600)
    settings.write_text(f'[plugins.encrypted]\n"keys.file" = "{keys}"\n', encoding="utf-8")
    tier.mkdir()
    uri, real = f"file://{tier}", CommittedPublisher.commit

    def commit(self: CommittedPublisher, *, always: bool) -> None:
        keys.write_text(keys.read_text(encoding="utf-8").replace('"k"', '"next"', 1), encoding="utf-8")
        assert run(["tier", "rewrap", uri, "--config", str(settings)]) == 0
        real(self, always=always)

    with stratalog.open_engine(tmp_path / "data", tier=uri, config=settings) as engine:
        engine.create_topic("orders", config={"tier.layout": "encrypted", "retention.ms": -1})
        log = engine.log("orders", 0)
        log.append([stratalog.Record(key=b"a", value=b"one"), stratalog.Record(key=b"b", value=b"two")])
        log.roll()
        engine.offload()
        with monkeypatch.context() as patch:
            patch.setattr(CommittedPublisher, "commit", commit)
            (result,) = engine.erase("orders", b"a")
        assert not result.is_complete
        assert [record.value for record in log.records()] == [b"one", b"two"]
        assert engine.erase("orders", b"a")[0].is_complete
        assert [record.value for record in log.records()] == [b"two"]
