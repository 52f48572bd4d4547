"""Topic settings of plugins: checks, storage, changes, their use by components, and topics whose plugin is missing."""

from __future__ import annotations

import logging
import sys
import types
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from command_runs import printed_items
from stratalog import Record, open_engine
from stratalog.cli.app import run
from stratalog.config.topic import TopicConfig
from stratalog.errors import (
    ConfigError,
    PluginClashError,
    PluginImportError,
    UnknownComponentError,
    UnknownSettingError,
)
from stratalog.spi import (
    CleanupPolicy,
    DeletePrefix,
    Keep,
    LogSummary,
    OpenContext,
    Provider,
    Section,
    TierLayout,
    hookimpl,
    key,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(Section):
    keep: int = key("newest.keep", 1, at_least=1, at_most=9, doc="How many segments stay.")


class Newest(CleanupPolicy):
    def plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Keep | DeletePrefix]:
        del now_ms
        section = config.sections["newest"]
        assert isinstance(section, Settings)
        first, newest = log.segments[0].base_offset, log.segments[-section.keep :]
        return [DeletePrefix(first, newest[0].base_offset, "too many")] if first < newest[0].base_offset else []


def open_newest(context: OpenContext) -> CleanupPolicy:
    del context
    return Newest()


def plugin(name: str = "newest_plugin", section: type[Section] = Settings) -> types.ModuleType:
    plugin_module = types.ModuleType(name)

    @hookimpl
    def stratalog_cleanup_policies() -> tuple[Provider[CleanupPolicy], ...]:
        return (Provider(name="newest", open=open_newest, topic_section=section),)

    plugin_module.stratalog_cleanup_policies = stratalog_cleanup_policies  # type: ignore[attr-defined] # a module made by hand
    return plugin_module


def test_a_policy_sees_the_settings_of_each_topic(tmp_path: Path) -> None:
    with open_engine(tmp_path, plugins=[plugin()], topic_defaults={"newest.keep": "3"}) as engine:
        engine.create_topic("two", config={"cleanup.policy": "newest", "newest.keep": 2})
        engine.create_topic("usual", config={"cleanup.policy": "newest"})
        for topic in ("two", "usual"):
            for _ in range(5):
                engine.log(topic, 0).append([Record(value=b"v")])
                engine.log(topic, 0).roll()
        engine.apply_retention()
        assert [len(engine.log(topic, 0).segments()) for topic in ("two", "usual")] == [2, 3]
        engine.alter_topic("usual", {"newest.keep": 1})
        engine.apply_retention()
        assert len(engine.log("usual", 0).segments()) == 1
    with open_engine(tmp_path, plugins=[plugin()]) as engine:
        assert engine.topics()["two"].config.to_mapping()["newest.keep"] == 2
        assert engine.alter_topic("two", {"newest.keep": None}).config.to_mapping()["newest.keep"] == 1


@pytest.mark.parametrize(
    ("config", "kind", "told"),
    [
        ({"newest.keep": 0}, ConfigError, "must be at least 1"),
        (
            {"newest.kepp": 2},
            UnknownSettingError,
            r"^unknown setting 'newest.kepp' source=\S+; did you mean 'newest.keep'\?$",
        ),
        (
            {"newst.keep": 2},
            UnknownSettingError,
            r"^unknown setting 'newst.keep' source=\S+; did you mean 'newest.keep'",
        ),
        ({"oldest.drop": 2}, UnknownSettingError, "no installed plugin has this setting"),
    ],
)
def test_wrong_settings_of_a_plugin_are_refused(
    tmp_path: Path, config: dict[str, object], kind: type[ConfigError], told: str
) -> None:
    with open_engine(tmp_path, plugins=[plugin()]) as engine:
        engine.create_topic("there")
        with pytest.raises(kind, match=told):
            engine.create_topic("new", config=config)
        with pytest.raises(kind, match=told):
            engine.alter_topic("there", config)
        assert list(engine.topics()) == ["there"]
    with pytest.raises(kind, match=told):
        open_engine(tmp_path / "other", plugins=[plugin()], topic_defaults=config)


def test_without_the_plugin_a_topic_is_read_altered_and_its_settings_are_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with open_engine(tmp_path, plugins=[plugin()]) as engine:
        engine.create_topic("t", config={"newest.keep": 2})
        engine.log("t", 0).append([Record(value=b"v")])
    with caplog.at_level(logging.WARNING), open_engine(tmp_path) as engine:
        assert "topic t has settings that no installed plugin knows; they are kept" in caplog.text
        assert [record.value for record in engine.log("t", 0).records()] == [b"v"]
        assert engine.alter_topic("t", {"retention.ms": 1}).config.retention_ms == 1
        assert engine.alter_topic("t", {"retention.ms": None}).config.retention_ms == TopicConfig().retention_ms
        for setting in ("newest.keep", "newest.other"):
            with pytest.raises(
                UnknownSettingError, match=r"newest\.(keep|other).*no installed plugin has this setting"
            ):
                engine.alter_topic("t", {setting: 3})
        engine.create_topic("other")
    with open_engine(tmp_path, plugins=[plugin()]) as engine:
        assert engine.topics()["t"].config.to_mapping()["newest.keep"] == 2
    with open_engine(tmp_path) as engine:
        assert engine.alter_topic("t", {"newest.keep": None, "retention.ms": 1}).config.retention_ms == 1
    with open_engine(tmp_path, plugins=[plugin()]) as engine:
        assert engine.topics()["t"].config.to_mapping()["newest.keep"] == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StricterSettings(Settings):
    """Settings of a later version of the plugin, with a narrower range."""

    keep: int = key("newest.keep", 7, at_least=5, doc="How many segments stay.")


def test_settings_that_a_later_version_refuses_stop_the_policies_and_not_the_readers(tmp_path: Path) -> None:
    with open_engine(tmp_path, plugins=[plugin()]) as engine:
        engine.create_topic("t", config={"cleanup.policy": "newest", "newest.keep": 2})
        engine.log("t", 0).append([Record(value=b"v")])
    with open_engine(tmp_path, plugins=[plugin(section=StricterSettings)]) as engine:
        assert [record.value for record in engine.log("t", 0).records()] == [b"v"]
        assert list(engine.topics()) == ["t"]
        with pytest.raises(ConfigError, match=r"newest\.keep=2 must be at least 5 source=topic t"):
            engine.apply_retention()
        assert engine.alter_topic("t", {"newest.keep": 5}).config.to_mapping()["newest.keep"] == 5
        engine.apply_retention()


@pytest.mark.parametrize("setting", ["cleanup.policy", "tier.layout"])
def test_without_the_plugin_that_a_setting_names_the_others_can_be_altered(tmp_path: Path, setting: str) -> None:
    class Layout:
        @hookimpl
        def stratalog_tier_layouts(self) -> tuple[Provider[TierLayout], ...]:
            return (Provider(name="newest", open=lambda _: pytest.fail("nothing is moved to a tier")),)

    with open_engine(tmp_path, plugins=[plugin(), Layout()]) as engine:
        engine.create_topic("t", config={setting: "newest"})
    with open_engine(tmp_path) as engine:
        assert engine.alter_topic("t", {"retention.ms": 1}).config.retention_ms == 1
        with pytest.raises(UnknownComponentError, match="'newest' is installed"):
            engine.alter_topic("t", {setting: "newest"})
        engine.alter_topic("t", {setting: None})


def test_a_policy_that_is_not_installed_keeps_no_other_log_from_being_compacted(tmp_path: Path) -> None:
    with open_engine(tmp_path, plugins=[plugin()]) as engine:
        for topic, policy in (("a", "newest"), ("b", "compact")):
            engine.create_topic(topic, config={"cleanup.policy": policy, "min.cleanable.dirty.ratio": 0})
            engine.log(topic, 0).append([Record(key=b"k", value=b"v"), Record(key=b"k", value=b"w")])
            engine.log(topic, 0).roll()
    with open_engine(tmp_path) as engine:
        results = engine.run_cleaner()
        assert [(result.log.topic, type(result.error)) for result in results] == [
            ("a", UnknownComponentError),
            ("b", type(None)),
        ]
        assert [record.offset for record in engine.log("b", 0).records()] == [1]


def test_settings_of_one_name_belong_to_one_plugin(tmp_path: Path) -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Others(Section):
        keep: int = key("newest.keep", 5, doc="Something else.")

    with pytest.raises(PluginClashError, match=r"newest\.\*"):
        open_engine(tmp_path, plugins=[plugin(), plugin("copy_plugin", Others)])


def test_settings_that_only_a_broker_has_are_accepted(tmp_path: Path) -> None:
    config: dict[str, object] = {
        "min.insync.replicas": 2,
        "unclean.leader.election.enable": True,
        "message.downconversion.enable": False,
        "leader.replication.throttled.replicas": "*",
        "follower.replication.throttled.replicas": "0:1,1:2",
    }
    with open_engine(tmp_path) as engine:
        engine.create_topic("t", config=config)
    with open_engine(tmp_path) as engine:
        assert config.items() <= engine.topics()["t"].config.to_mapping().items()


# --- plugins that are modules without a distribution -----------------------------------------------------------------


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of an importable module with a policy."""
    monkeypatch.setitem(sys.modules, "newest_module", plugin("newest_module"))
    return "newest_module"


def test_the_settings_name_modules_that_are_plugins(tmp_path: Path, module: str) -> None:
    with open_engine(tmp_path, config={"plugins": {"modules": [module]}}) as engine:
        engine.create_topic("few", config={"cleanup.policy": "newest", "newest.keep": 2})
        assert engine.topics()["few"].config.cleanup_policy == ("newest",)
    with open_engine(tmp_path, config={"plugins.modules": [module]}, plugins=[sys.modules[module]]) as engine:
        assert engine.log("few", 0).config.cleanup_policy == ("newest",)  # a plugin that is given twice is used once


def test_the_command_line_uses_the_plugin_modules_of_the_settings(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STRATALOG_PLUGINS_MODULES", module)
    assert run(["plugins", "--json"]) == 0
    items = printed_items(capsys)
    assert [item["status"] for item in items if item["plugin"] == module] == ["ok"]


def test_a_missing_module_is_reported(tmp_path: Path) -> None:
    with pytest.raises(PluginImportError, match="no_such_module"):
        open_engine(tmp_path, config={"plugins.modules": ["no_such_module"]})
