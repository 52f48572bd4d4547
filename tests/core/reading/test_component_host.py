"""Components of one engine, which open in the thread that needs them first."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from stratalog import Record, open_engine
from stratalog.config.settings_sources import read_settings
from stratalog.errors import PluginError, UnknownSettingError
from stratalog.reading.open_reader import open_host
from stratalog.spi import (
    Action,
    CleanupPolicy,
    Codec,
    IndexFormat,
    LogSummary,
    OpenContext,
    Provider,
    RecordFormat,
    Section,
    TopicConfig,
    hookimpl,
    key,
)


class NoPlanPolicy(CleanupPolicy):
    """Policy that plans nothing."""

    def plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
        del log, config, now_ms
        return ()


SOON_S = 0.5


class Slow:
    """Plugin with a policy that another thread requests while it is being opened."""

    def __init__(self) -> None:
        self.opened = 0
        self.asks = threading.Thread(target=self.ask)
        self.began = threading.Event()
        self.found = list[CleanupPolicy]()
        self.host = open_host(read_settings({}, {}), [self], None)

    @hookimpl
    def stratalog_cleanup_policies(self) -> Iterable[Provider[CleanupPolicy]]:
        return (Provider(name="slow", open=self.open),)

    def open(self, context: OpenContext) -> CleanupPolicy:
        del context
        self.opened += 1
        if self.opened == 1:
            self.asks.start()
            self.began.wait()
            self.asks.join(SOON_S)  # a thread that does not wait for this one ends now
        return NoPlanPolicy()

    def ask(self) -> None:
        self.began.set()
        self.found.append(self.host.policy("slow"))


def test_threads_that_need_a_component_first_open_it_once() -> None:
    """Retention and cleaning begin at the same time, and request the policies of the same topics."""
    slow = Slow()
    with contextlib.closing(slow.host):
        first = slow.host.policy("slow")
        slow.asks.join()
    assert slow.found == [first]
    assert slow.opened == 1


class Failing:
    """A plugin with a codec and a record format that cannot be opened."""

    def __init__(self, error: BaseException) -> None:
        self.error, self.opened = error, 0

    def open(self, context: OpenContext) -> Any:  # Any: it never returns
        del context
        self.opened += 1
        raise self.error

    @hookimpl
    def stratalog_codecs(self) -> Iterable[Provider[Codec]]:
        return (Provider(name="brotli", open=self.open),)

    @hookimpl
    def stratalog_record_formats(self) -> Iterable[Provider[RecordFormat]]:
        return (Provider(name="v9", open=self.open),)

    @hookimpl
    def stratalog_index_formats(self) -> Iterable[Provider[IndexFormat[Any]]]:
        return (Provider(name="tree", open=self.open),)


@pytest.mark.parametrize("error", [ValueError("bug"), ImportError("no brotli"), SystemExit(3), PluginError("refused")])
def test_an_unused_component_that_cannot_be_opened_does_not_stop_an_engine(
    tmp_path: Path, error: BaseException
) -> None:
    plugin = Failing(error)
    with open_engine(tmp_path, plugins=[plugin]) as engine:
        assert plugin.opened == 0
        engine.create_topic("t", config={"compression.type": "zstd"})
        engine.log("t", 0).append([Record(value=b"v")])
        assert [record.value for record in engine.log("t", 0).records()] == [b"v"]
        codecs = engine.log("t", 0).components.codecs
        for _ in range(2):
            with pytest.raises(PluginError, match=r"codec 'brotli' version 1 \(plugin .*Failing.*\): open raised"):
                codecs.by_name("brotli")
    assert plugin.opened == 2


def test_the_quarantine_names_what_cannot_be_opened() -> None:
    with contextlib.closing(open_host(read_settings({}, {}), [Failing(ValueError("bug"))], None)) as host:
        errors = host.opener.find_quarantined()
    assert sorted(errors) == [("codecs", "brotli"), ("index_formats", "tree"), ("record_formats", "v9")]
    assert all("open raised ValueError: bug" in str(error) for error in errors.values())


def test_settings_of_a_codec_are_checked_when_an_engine_opens(tmp_path: Path) -> None:
    class Level(Section):
        level: int = key("level", 1, at_least=1, doc="How hard it tries.")

    class Sectioned(Failing):
        @hookimpl
        def stratalog_codecs(self) -> Iterable[Provider[Codec]]:
            return (Provider(name="brotli", open=self.open, engine_section=Level),)

    with pytest.raises(UnknownSettingError, match="levle"):
        open_engine(tmp_path, plugins=[Sectioned(ValueError("bug"))], config={"plugins": {"brotli": {"levle": 1}}})
