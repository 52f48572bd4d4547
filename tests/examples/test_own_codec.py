"""The example of a codec that Kafka does not have."""

from __future__ import annotations

from pathlib import Path

import pytest

import own_codec
from example_plugins import imported_of_stratalog, wheel_of
from own_codec import XzCodec
from stratalog import Record, open_engine, open_reader
from stratalog.errors import UnsupportedCompressionError
from stratalog.registry.plugin_check import check_plugin
from stratalog.spi import Codec
from stratalog.testing.contracts import CodecContract, EngineContract, EngineSetup


class TestXz(CodecContract):
    detects_damage = True

    @pytest.fixture
    def codec(self) -> Codec:
        return XzCodec()


@pytest.mark.long
class TestXzInAnEngine(EngineContract):
    missing = "no codec 'xz' is installed"

    @pytest.fixture
    def engine_setup(self) -> EngineSetup:
        return EngineSetup(plugins=[own_codec], topic={"compression.type": "xz"})


def test_a_topic_that_names_the_codec_is_read_where_the_plugin_is(tmp_path: Path) -> None:
    records = [Record(timestamp_ms=n, key=b"k", value=b"some value " * 20) for n in range(50)]
    with open_engine(tmp_path, plugins=[own_codec]) as engine:
        engine.create_topic("t", config={"compression.type": "xz"})
        log = engine.log("t", 0)
        log.append(records)
        last_position = (tmp_path / "t-0" / f"{0:020d}.log").stat().st_size
        assert last_position < 500
        assert [record.value for record in log.records()] == [record.value for record in records]
        log.append([records[0]])
    with open_reader(tmp_path) as reader, pytest.raises(UnsupportedCompressionError) as refused:
        list(reader.log("t", 0).records(50))
    assert refused.value.file == str(tmp_path / "t-0" / f"{0:020d}.log")
    assert refused.value.position == last_position
    assert f"file={refused.value.file} position={last_position}: install the plugin" in str(refused.value)


def test_its_structure_is_right() -> None:
    assert check_plugin(own_codec) == []


def test_it_imports_the_contract_and_nothing_else_of_stratalog() -> None:
    assert imported_of_stratalog("own_codec") <= {"stratalog", "stratalog.errors", "stratalog.spi"}


@pytest.mark.long
def test_it_can_be_installed(tmp_path: Path) -> None:
    names, points = wheel_of("own_codec", tmp_path)
    assert {"own_codec/__init__.py", "own_codec/py.typed"} <= names
    assert points.split() == ["[stratalog.v1]", "own_codec", "=", "own_codec"]
