"""The example of an engine that consists of plugins."""

from __future__ import annotations

import base64
import sqlite3
from pathlib import Path

import pytest

import composed_engine
from composed_engine import PLUGINS, TOPIC, open_composed
from example_plugins import imported_of_stratalog
from stratalog import Engine, Record, open_reader
from stratalog.testing.contracts import EngineContract, EngineSetup

SECRET = b"the value that nobody else may read"


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys.toml"
    path.write_text(f'active = "a"\n[keys]\na = "{base64.b64encode(bytes(32)).decode()}"\n', "utf-8")
    path.chmod(0o600)
    return path


@pytest.mark.long
class TestComposedEngine(EngineContract):
    opens_without = False
    missing = "sqlite"

    @pytest.fixture
    def engine_setup(self, tmp_path: Path, keys_file: Path) -> EngineSetup:
        return EngineSetup(
            plugins=PLUGINS,
            config=composed_engine.settings(keys_file),
            topic=TOPIC,
            tier=f"sqlite://{tmp_path / 'tier.db'}",
        )


def fill(engine: Engine) -> None:
    engine.create_topic("t", config={**TOPIC, "prefix_budget.records": 4})
    log = engine.log("t", 0)
    for first in (0, 5):
        log.append([Record(timestamp_ms=n, key=b"device/%d" % n, value=SECRET) for n in range(first, first + 5)])
        log.roll()


def test_all_parts_work_together(tmp_path: Path, keys_file: Path) -> None:
    with open_composed(tmp_path, keys_file) as engine:
        fill(engine)
        engine.offload()
        engine.apply_retention()
        log = engine.log("t", 0)
        assert log.offsets().local_log_start == 10, "only the tier has the records"
        for result in engine.run_cleaner():
            assert result.error is None
        assert [record.offset for record in log.records()] == [6, 7, 8, 9]
        assert log.to_arrow(columns=["offset"])["offset"].to_pylist() == [6, 7, 8, 9]
    tier = f"sqlite://{tmp_path / 'tier.db'}"
    with open_reader(tier, plugins=list(PLUGINS), config=composed_engine.settings(keys_file)) as reader:
        assert {record.value for record in reader.log("t", 0).records()} == {SECRET}
    with sqlite3.connect(tmp_path / "tier.db") as connection:
        assert not any(SECRET in row[0] for row in connection.execute("SELECT data FROM parts"))
    connection.close()


def test_it_uses_no_other_module_of_stratalog() -> None:
    assert imported_of_stratalog("composed_engine") == {"stratalog"}
