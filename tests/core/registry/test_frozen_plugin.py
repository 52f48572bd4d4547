"""A wheel that was built for contract version 1. It is never rebuilt, and each of its parts must work."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

from stratalog import Record, open_engine, open_reader
from stratalog.cli.app import run
from stratalog.registry.plugin_check import check_plugin

WHEEL: Final = Path(__file__).parents[2] / "data" / "acme_v1-1.0-py3-none-any.whl"
SHA256: Final = "3d927a4dc08d00c1ae2d0f6a8995afe2828dc02cd79ca14dbef85676905b873e"
CONFIG: Final = {
    "remote.storage.enable": True,
    "tier.layout": "pieces",
    "cleanup.policy": "newest",
    "newest.segments": 2,
    "compression.type": "deflate",
    "deflate.level": 9,
    "index.extra": "keys",
    "retention.ms": -1,
}


@pytest.fixture
def acme(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Yield the plugin's module, as if pip had installed it."""
    monkeypatch.syspath_prepend(str(WHEEL))
    importlib.invalidate_caches()
    yield importlib.import_module("acme_v1")
    sys.modules.pop("acme_v1", None)


def test_the_wheel_is_the_one_that_was_built_for_version_1() -> None:
    assert sha256(WHEEL.read_bytes()).hexdigest() == SHA256


@pytest.mark.usefixtures("acme")
def test_check_plugin_accepts_the_frozen_plugin() -> None:
    assert check_plugin("acme_v1") == []


def test_all_components_of_the_frozen_plugin_work_together(acme: ModuleType, tmp_path: Path) -> None:
    with open_engine(tmp_path / "data", tier="acme://bucket", config={"services": ["watcher"]}) as engine:
        engine.create_topic("t", config=CONFIG)
        log = engine.log("t", 0)
        for number in range(4):
            log.append([Record(key=b"k%d" % number, value=b"v%d" % number)])
            log.roll()
        engine.start()
        engine.make_extra_indexes()
        engine.offload()
        engine.apply_retention()
        assert [record.value for record in log.records()] == [b"v2", b"v3"]
        assert [record.key for record in log.records_with_key(b"k3")] == [b"k3"]
        assert [segment.base_offset for segment in log.view().segments] == [4], "the others are in the tier alone"
    assert acme.EVENTS[0] == "started"
    assert "stopped" in acme.EVENTS
    assert [event for event in acme.EVENTS if event.startswith("offloaded")] == [f"offloaded {n}" for n in range(4)]
    with open_reader("acme://bucket") as reader:
        assert [record.value for record in reader.log("t", 0).records()] == [b"v2", b"v3"]


@pytest.mark.usefixtures("acme")
def test_the_command_of_the_frozen_plugin_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["acme-v1"]) in {0, None}
    assert capsys.readouterr().out == "acme 1\n"
