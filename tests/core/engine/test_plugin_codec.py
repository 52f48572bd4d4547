"""A codec of a plugin: a topic selects it with a level, and its records can be read only with the plugin."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from stratalog import Record, open_engine
from stratalog.errors import ConfigError, PluginError, UnknownComponentError, UnsupportedCompressionError
from stratalog.spi import Buffer, Codec, Provider, Section, hookimpl, key

VALUE = b"value" * 100


@dataclass(frozen=True, slots=True, kw_only=True)
class DeflateSection(Section):
    title: ClassVar[str] = "Deflate"

    level: int = key("deflate.level", 6, at_least=1, at_most=9, doc="Level of zlib.")


class Deflate(Codec):
    id = 7
    levels = range(1, 10)

    def __init__(self, used_levels: list[int | None]) -> None:
        self.used = used_levels

    def compress(self, data: Buffer, *, level: int | None, magic: int) -> bytes:
        del magic
        self.used.append(level)
        return zlib.compress(data, -1 if level is None else level)

    def decompress(self, data: Buffer, *, limit_bytes: int, magic: int) -> memoryview:
        del limit_bytes, magic
        return memoryview(zlib.decompress(data))


class Plugin:
    """Plugin that offers the codec; ``used`` has the levels of its calls."""

    def __init__(self, *, has_levels: bool = True) -> None:
        self.used, self._section = list[int | None](), DeflateSection if has_levels else None

    @hookimpl
    def stratalog_codecs(self) -> Sequence[Provider[Codec]]:
        return [Provider[Codec](name="deflate", open=lambda _: Deflate(self.used), topic_section=self._section)]


def test_a_topic_names_a_codec_of_a_plugin_and_its_level(tmp_path: Path) -> None:
    plugin = Plugin()
    with open_engine(tmp_path, plugins=[plugin]) as engine:
        engine.create_topic("t", config={"compression.type": "deflate", "deflate.level": 9})
        engine.log("t", 0).append([Record(value=VALUE)])
        assert [record.value for record in engine.log("t", 0).records()] == [VALUE]
        (segment,) = engine.log("t", 0).segments()
        assert segment.size_bytes < len(VALUE)
    assert plugin.used == [9]


def test_a_codec_without_settings_uses_its_own_level(tmp_path: Path) -> None:
    plugin = Plugin(has_levels=False)
    with open_engine(tmp_path, plugins=[plugin]) as engine:
        engine.create_topic("t", config={"compression.type": "deflate"})
        engine.log("t", 0).append([Record(value=VALUE)])
    assert plugin.used == [None]


def test_a_codec_that_is_not_installed_is_refused_when_a_topic_names_it(tmp_path: Path) -> None:
    with open_engine(tmp_path) as engine:
        with pytest.raises(UnknownComponentError, match=r"no codec 'zst' is installed; installed: .*zstd"):
            engine.create_topic("t", config={"compression.type": "zst"})
        with pytest.raises(ConfigError, match=r"compression\.type.*the name of a codec"):
            engine.create_topic("t", config={"compression.type": "Zstd 3"})
        engine.create_topic("t")
        with pytest.raises(UnknownComponentError, match="'zst'"):
            engine.alter_topic("t", {"compression.type": "zst"})


def test_without_the_plugin_its_records_raise_an_error_and_stay(tmp_path: Path) -> None:
    with open_engine(tmp_path, plugins=[Plugin()]) as engine:
        engine.create_topic("t", config={"compression.type": "deflate"})
        engine.log("t", 0).append([Record(value=VALUE)])
    with open_engine(tmp_path) as engine, pytest.raises(UnsupportedCompressionError, match="id 7"):
        list(engine.log("t", 0).records())
    with open_engine(tmp_path, plugins=[Plugin()]) as engine:
        assert [record.value for record in engine.log("t", 0).records()] == [VALUE]


class Exiting(Deflate):
    def compress(self, data: Buffer, *, level: int | None, magic: int) -> bytes:
        del data, level, magic
        raise SystemExit(3)


class ExitingPlugin:
    @hookimpl
    def stratalog_codecs(self) -> Sequence[Provider[Codec]]:
        return [Provider[Codec](name="exiting", open=lambda _: Exiting([]))]


def test_a_codec_that_exits_on_a_producers_thread_does_not_end_the_program(tmp_path: Path) -> None:
    with open_engine(tmp_path, plugins=[ExitingPlugin()]) as engine:
        engine.create_topic("t", config={"compression.type": "exiting"})
        with engine.producer() as producer:
            sent = producer.send("t", value=VALUE, partition=0)
            producer.flush()
            assert isinstance(sent.exception(), PluginError)
