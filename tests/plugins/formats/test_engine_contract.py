"""The contract of engines, with the bundled layouts, codecs, indexes and record formats."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from stratalog.testing.contracts import EngineContract, EngineSetup

pytestmark = pytest.mark.long

TOPICS: Final[Mapping[str, Mapping[str, object]]] = {
    "plain": {"tier.layout": "plain", "compression.type": "zstd", "index.extra": "bloom"},
    "chunked": {"tier.layout": "chunked", "compression.type": "lz4"},
    "parquet": {"tier.layout": "parquet", "compression.type": "snappy"},
    "magic 1": {"record.version": 1, "compression.type": "gzip"},
    "magic 0": {"record.version": 0},
}


class TestFormatsInAnEngine(EngineContract):
    entry_point = "formats"
    missing = "no record format with magic"

    @pytest.fixture(params=list(TOPICS))
    def engine_setup(self, request: pytest.FixtureRequest) -> EngineSetup:
        if request.param == "parquet":
            pytest.importorskip("pyarrow")
        return EngineSetup(topic=TOPICS[request.param])


class TestEncryptedLayoutInAnEngine(EngineContract):
    """The contract with the layout ``encrypted``. Its change of the setup is a rotation of the key."""

    entry_point = "formats"
    missing = "no record format with magic"

    @pytest.fixture
    def engine_setup(self, tmp_path: Path) -> EngineSetup:
        return EngineSetup(config=_keys(tmp_path / "keys.toml", "a"), topic={"tier.layout": "encrypted"})

    @pytest.fixture
    def changed_setup(self, engine_setup: EngineSetup, tmp_path: Path) -> EngineSetup:
        return replace(engine_setup, config=_keys(tmp_path / "new keys.toml", "b"))


def _keys(file: Path, active: str) -> dict[str, Any]:
    """Write a file with two keys, and return the settings that refer to it. ``active`` names the active key."""
    keys = "\n".join(f'{name} = "{base64.b64encode(name.encode() * 32).decode()}"' for name in "ab")
    file.write_text(f'active = "{active}"\n[keys]\n{keys}\n', encoding="utf-8")
    file.chmod(0o600)
    return {"plugins": {"encrypted": {"keys.file": str(file), "over": "single"}}}
