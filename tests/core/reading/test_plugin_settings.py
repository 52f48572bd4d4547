"""Settings of a plugin's component: the file, then the environment, then the options of the call take precedence."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pytest

from stratalog.config.settings_sources import read_settings
from stratalog.errors import ConfigError, UnknownSettingError
from stratalog.reading.open_reader import open_host
from stratalog.spi import ObjectStore, OpenContext, Provider, Section, hookimpl, key


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth(Section):
    """Settings of an object store."""

    depth: int = key("depth", 1, at_least=0, doc="How deep.")
    quiet: bool = key("quiet.mode", False, doc="No waves.")


class Sea:
    """Plugin with an object store that has settings. The tests never open the store."""

    @hookimpl
    def stratalog_object_stores(self) -> Iterable[Provider[ObjectStore]]:
        return (Provider(name="sea", open=self.open, schemes=frozenset({"sea"}), engine_section=Depth),)

    def open(self, context: OpenContext) -> ObjectStore:
        raise NotImplementedError


def opened_with(
    options: Mapping[str, object], config: Mapping[str, object], environment: Mapping[str, str]
) -> OpenContext:
    """Return the context with which the store would be opened."""
    with contextlib.closing(open_host(read_settings(config, environment), [Sea()], None)) as host:
        return host.opener.context(host.registry.object_stores().by_scheme("sea"), location="sea://a", options=options)


def test_options_win_over_the_environment_and_that_over_the_file() -> None:
    config, environment = {"plugins": {"sea": {"depth": 2}}}, {"STRATALOG_PLUGINS_SEA_DEPTH": "3"}
    assert opened_with({}, {}, {}).section == Depth()
    assert opened_with({}, config, {}).section == Depth(depth=2)
    assert opened_with({}, config, environment).section == Depth(depth=3)
    assert opened_with({"depth": "4", "quiet.mode": "yes"}, config, environment).section == Depth(depth=4, quiet=True)


def test_options_that_are_settings_are_not_handed_on_as_options() -> None:
    context = opened_with({"depth": 4, "key": "k", "token": None}, {}, {})
    assert context.options == {"key": "k"}


@pytest.mark.parametrize("depth", [-1, "deep", 1.5, True])
def test_an_option_that_is_a_setting_is_checked_as_one(depth: object) -> None:
    with pytest.raises(ConfigError, match=r"depth=.* source=tier options"):
        opened_with({"depth": depth}, {}, {})


def test_a_variable_of_no_setting_is_an_error_before_anything_is_opened() -> None:
    with pytest.raises(UnknownSettingError) as caught:
        open_host(read_settings({}, {"STRATALOG_PLUGINS_SEA_DEPHT": "3"}), [Sea()], None)
    assert caught.value.nearest == "STRATALOG_PLUGINS_SEA_DEPTH"


def test_a_misspelt_section_is_an_error_before_anything_is_opened() -> None:
    with pytest.raises(
        UnknownSettingError, match=r"unknown setting 'plugins\.metrcs'.*did you mean 'plugins\.metrics'"
    ):
        open_host(read_settings({"plugins": {"metrcs": {"port": 3}}}, {}), [Sea()], None)


@pytest.mark.parametrize("config", [{"acme": {"depth": 3}}, {"block": ["compaction"], "metrcs": {"port": 1}}])
def test_a_section_of_an_absent_plugin_is_ignored(config: Mapping[str, object]) -> None:
    open_host(read_settings({"plugins": config}, {}), [], None).close()
