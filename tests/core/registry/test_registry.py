from __future__ import annotations

import inspect
import logging
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest

from stratalog import TopicPartition
from stratalog.errors import PluginClashError, PluginError, PluginImportError, UnknownComponentError
from stratalog.registry import PluginInfo, PluginStatus, Registry
from stratalog.registry.component_kinds import KINDS
from stratalog.spi import Codec, Command, LogOpened, Provider, hooks

Install = Callable[..., None]
MakePlugin = Callable[..., types.ModuleType]
MakeProvider = Callable[..., Provider[Codec]]

CODEC_SOURCE = """
from stratalog.spi import Provider, hookimpl

@hookimpl
def stratalog_codecs():
    return [Provider(name="{name}", version={version}, open=lambda context: None, capabilities=("fast",))]
"""
HEARD = "from stratalog.spi import hookimpl\nheard = []\n@hookimpl\ndef stratalog_on_log_opened(event):\n    heard.append(event)\n"
NOTHING = ("no-plugin-of-this-name",)  # a list of allowed plugins, independent of the installed ones


def codec_source(name: str, version: int = 1) -> str:
    return CODEC_SOURCE.format(name=name, version=version)


def info_of(registry: Registry, name: str) -> PluginInfo:
    return next(info for info in registry.plugins() if info.name == name)


def test_an_installed_plugin_is_found_and_offers(install_distribution: Install) -> None:
    install_distribution(
        "acme-codecs", version="2.1", entry_points={"acme": "acme_x"}, modules={"acme_x": codec_source("zip9", 3)}
    )
    registry = Registry.load(allow=("acme",))
    (offer,) = registry.codecs()
    assert (offer.plugin, offer.distribution, offer.version) == ("acme", "acme-codecs", "2.1")
    assert offer.provider.label == "zip9@3"
    info = info_of(registry, "acme")
    assert info.status == "ok"
    assert info.error is None
    (word,) = info.offers["codecs"]
    assert (word.name, word.version, word.capabilities) == ("zip9", 3, ("fast",))
    assert set(info.offers) == {"codecs"}


def test_the_plugins_of_this_distribution_are_found() -> None:
    registry = Registry.load()
    names = {info.name for info in registry.plugins() if info.distribution == "stratalog"}
    assert {"local", "formats", "s3", "compaction"} <= names


def test_a_blocked_plugin_is_never_imported(install_distribution: Install) -> None:
    install_distribution("acme", entry_points={"acme": "acme_bomb"}, modules={"acme_bomb": "raise SystemExit"})
    registry = Registry.load(block=("acme",))
    assert info_of(registry, "acme").status is PluginStatus.BLOCKED
    assert "acme_bomb" not in sys.modules
    with pytest.raises(UnknownComponentError, match=r"plugin acme of acme 1\.0 is blocked"):
        registry.codecs().by_name("zip9")


def test_a_plugin_that_is_not_allowed_is_never_imported(install_distribution: Install) -> None:
    install_distribution("acme", entry_points={"acme": "acme_bomb"}, modules={"acme_bomb": "raise SystemExit"})
    registry = Registry.load(allow=("local",))
    assert info_of(registry, "acme").status is PluginStatus.BLOCKED
    assert "acme_bomb" not in sys.modules


def test_an_allowed_plugin_that_is_not_installed_is_mentioned() -> None:
    registry = Registry.load(allow=NOTHING)
    with pytest.raises(UnknownComponentError, match=r"no-plugin-of-this-name failed: plugins\.allow names"):
        registry.codecs().by_name("zip9")


def test_a_plugin_that_cannot_be_imported_is_mentioned_when_it_is_missed(install_distribution: Install) -> None:
    install_distribution(
        "acme",
        entry_points={"good": "acme_good", "bad": "acme_bad"},
        modules={"acme_good": codec_source("zip9"), "acme_bad": "import no_such_lib"},
        requires=["no_such_lib; extra == 'more'"],
    )
    registry = Registry.load(allow=("good", "bad"))
    assert registry.codecs().names() == ("zip9",)
    info = info_of(registry, "bad")
    assert info.status is PluginStatus.FAILED
    assert isinstance(info.error, PluginImportError)
    with pytest.raises(UnknownComponentError, match=r"pip install 'acme\[more\]'"):
        registry.object_stores().by_scheme("s4")


def test_the_failure_of_a_plugin_that_only_listens_is_logged(
    install_distribution: Install, caplog: pytest.LogCaptureFixture
) -> None:
    install_distribution("acme", entry_points={"acme": "acme_x"}, modules={"acme_x": f"import no_such_lib\n{HEARD}"})
    with caplog.at_level(logging.WARNING, logger="stratalog.registry"):
        Registry.load(allow=("acme",))
        Registry.load(block=("acme",))
    (message,) = [record.getMessage() for record in caplog.records if "acme" in record.getMessage()]
    assert message.startswith("plugin acme of acme 1.0 failed: No module named 'no_such_lib'")


def test_a_misspelt_hook_fails_the_plugin_and_not_the_engine(install_distribution: Install) -> None:
    source = codec_source("zip9") + "\nstratalog_codex = hookimpl(lambda: ())\n"
    install_distribution("acme", entry_points={"acme": "acme_x"}, modules={"acme_x": source})
    registry = Registry.load(allow=("acme",))
    assert "did you mean stratalog_codecs" in str(info_of(registry, "acme").error)
    assert registry.codecs().names() == ()


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("raise RuntimeError('out of luck')", "out of luck"),
        ("return ['zip9']", "must return Provider values"),
        ("return [Provider(name='Not A Name', open=print)]", "Not A Name"),
        ("import no_such_lib", "pip install 'acme[more]'"),
    ],
)
def test_a_hook_that_fails_takes_the_whole_plugin_out(install_distribution: Install, body: str, told: str) -> None:
    source = f"{codec_source('zip9')}\n{HEARD}\n@hookimpl\ndef stratalog_tier_layouts():\n    {body}\n"
    install_distribution(
        "acme",
        entry_points={"acme": "acme_x"},
        modules={"acme_x": source},
        requires=["no_such_lib; extra == 'more'"],
    )
    registry = Registry.load(allow=("acme",))
    info = info_of(registry, "acme")
    assert info.status is PluginStatus.FAILED
    assert told in str(info.error)
    assert info.offers == {}
    assert registry.codecs().names() == ()
    registry.notify(LogOpened(log=TopicPartition("t", 0), log_start=0, log_end=0))
    assert sys.modules["acme_x"].heard == []


def test_a_passed_module_is_used_beside_the_installed_ones(make_plugin: MakePlugin, provider: MakeProvider) -> None:
    codec = provider("zip9")
    registry = Registry.load([make_plugin("my_codecs", codecs=[codec])], block=("my_codecs",))
    assert registry.codecs().by_name("zip9") is codec
    info = info_of(registry, "my_codecs")
    assert (info.status, info.distribution) == (PluginStatus.OK, "")


def test_a_passed_plugin_may_be_an_object_or_the_name_of_a_module(install_distribution: Install) -> None:
    install_distribution("acme", entry_points={}, modules={"acme_x": codec_source("zip9")})

    class Plugin:
        @hooks.hookimpl
        def stratalog_codecs(self) -> list[Provider[Codec]]:
            return []

    registry = Registry.load(["acme_x", Plugin(), Plugin()], allow=NOTHING)
    ok = [info.name for info in registry.plugins() if info.status is PluginStatus.OK]
    assert len(ok) == 3
    assert "acme_x" in ok
    assert registry.codecs().names() == ("zip9",)


def test_a_passed_module_that_is_installed_counts_once(install_distribution: Install) -> None:
    install_distribution("acme", entry_points={"acme": "acme_x"}, modules={"acme_x": codec_source("zip9")})
    registry = Registry.load(["acme_x", "acme_x"], allow=("acme",))
    assert registry.codecs().by_name("zip9").name == "zip9"
    (offer,) = registry.codecs()
    assert offer.distribution == "acme"


def test_an_error_in_a_passed_plugin_is_raised(make_plugin: MakePlugin) -> None:
    with pytest.raises(PluginError, match="did you mean stratalog_codecs"):
        Registry.load([make_plugin("mine", codex=[])])
    with pytest.raises(PluginError, match="stratalog_codecs of plugin 'mine' failed"):
        Registry.load([make_plugin("mine", codecs=lambda: 1 // 0)])
    with pytest.raises(PluginImportError):
        Registry.load(["no_such_module"])


def test_a_name_in_two_distributions_fails_both_and_imports_neither(install_distribution: Install) -> None:
    install_distribution("one", entry_points={"acme": "acme_one"}, modules={"acme_one": codec_source("zip9")})
    install_distribution("two", entry_points={"acme": "acme_two"}, modules={"acme_two": codec_source("zip9")})
    registry = Registry.load(allow=("acme",))
    assert not {"acme_one", "acme_two"} & set(sys.modules)
    failed = [info for info in registry.plugins() if info.name == "acme"]
    assert [isinstance(info.error, PluginClashError) for info in failed] == [True, True]
    assert Registry.load(allow=("two:acme",)).codecs().names() == ("zip9",)


def test_a_component_offered_twice_names_both_distributions(install_distribution: Install) -> None:
    install_distribution("one", entry_points={"a": "acme_one"}, modules={"acme_one": codec_source("zip9")})
    install_distribution("two", entry_points={"b": "acme_two"}, modules={"acme_two": codec_source("zip9")})
    registry = Registry.load(allow=("a", "b"))
    with pytest.raises(PluginClashError, match=r"plugin a of one 1.0 and plugin b of two 1.0"):
        registry.codecs().by_name("zip9")
    assert Registry.load(allow=("a", "b"), block=("b",)).codecs().by_name("zip9").name == "zip9"


def test_settings_choose_between_stores_of_a_scheme(make_plugin: MakePlugin, provider: MakeProvider) -> None:
    stores: list[Provider[Any]] = [provider("one", 1, frozenset({"s4"})), provider("two", 1, frozenset({"s4"}))]
    plugin = make_plugin("mine", object_stores=stores)
    with pytest.raises(PluginClashError):
        Registry.load([plugin], allow=NOTHING).object_stores().by_scheme("s4")
    preferring = Registry.load([plugin], allow=NOTHING, prefer={"s4": "two"})
    assert preferring.object_stores().by_scheme("s4") is stores[1]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.key)
def test_each_kind_has_a_catalogue_of_its_own(make_plugin: MakePlugin, provider: MakeProvider, kind: object) -> None:
    key = getattr(kind, "key", "")
    registry = Registry.load([make_plugin("mine", **{key: [provider("thing")]})], allow=NOTHING)
    for catalogue_kind in KINDS:
        catalogue = getattr(registry, catalogue_kind.key)()
        assert catalogue.names() == (("thing",) if catalogue_kind is kind else ())
    assert set(info_of(registry, "mine").offers) == {key}


def test_each_collecting_hook_has_a_kind_except_commands() -> None:
    collecting = {
        name
        for name, spec in vars(hooks).items()
        if name.startswith("stratalog_") and not inspect.signature(spec).parameters
    }
    assert collecting == {kind.hook for kind in KINDS} | {"stratalog_commands"}


def test_loading_calls_each_hook_once_and_that_of_commands_never(make_plugin: MakePlugin) -> None:
    called_hooks = list[str]()
    answers = {kind.key: lambda key=kind.key: called_hooks.append(key) for kind in KINDS}
    registry = Registry.load(
        [make_plugin("mine", **answers, commands=lambda: called_hooks.append("commands"))], allow=NOTHING
    )
    registry.codecs()
    registry.tier_layouts()
    assert sorted(called_hooks) == sorted(kind.key for kind in KINDS)


def test_commands_are_on_offer_and_a_failing_hook_hides_no_other(make_plugin: MakePlugin) -> None:
    command = Command("do-it", "Does it.", object)
    sound_plugin, failing_plugin = make_plugin("good", commands=[command]), make_plugin("bad", commands=lambda: 1 // 0)
    commands = Registry.load([sound_plugin, failing_plugin], allow=NOTHING).commands()
    assert commands.by_name("do-it") is command
    with pytest.raises(UnknownComponentError, match="stratalog_commands of plugin 'bad' failed"):
        commands.by_name("other")


def test_requirements_are_searched_in_all_kinds_that_write_bytes(
    make_plugin: MakePlugin, provider: MakeProvider
) -> None:
    plugin = make_plugin(
        "mine", codecs=[provider("zip9")], tier_layouts=[provider("cubes", 2)], services=[provider("web")]
    )
    registry = Registry.load([plugin], allow=NOTHING)
    registry.check_requires(["zip9@1", "cubes@2"])
    with pytest.raises(UnknownComponentError, match="web@1 is required"):
        registry.check_requires(["web@1"])


def test_events_reach_listeners_and_failures_are_counted(make_plugin: MakePlugin) -> None:
    heard = list[object]()

    def hear(event: LogOpened) -> None:
        heard.append(event)

    sound_plugin = make_plugin("good", on_log_opened=hear)
    failing_plugin = make_plugin("bad", on_log_opened=lambda event: event.no_such_field)
    registry = Registry.load([failing_plugin, sound_plugin], allow=NOTHING)
    event = LogOpened(log=TopicPartition("t", 0), log_start=0, log_end=0)
    registry.notify(event)
    assert heard == [event]
    assert registry.listener_failures == {"bad": 1}


def test_registries_do_not_share_components(make_plugin: MakePlugin, provider: MakeProvider) -> None:
    first = Registry.load([make_plugin("mine", codecs=[provider("zip9")])], allow=NOTHING)
    second = Registry.load(allow=NOTHING)
    assert first.codecs().names() == ("zip9",)
    assert second.codecs().names() == ()
