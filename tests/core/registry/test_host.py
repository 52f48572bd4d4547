from __future__ import annotations

import inspect
import logging
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

import pytest

from stratalog import TopicPartition
from stratalog.env.deadlines import DeadlineCalls
from stratalog.errors import PluginError
from stratalog.model import events
from stratalog.registry.component_kinds import CODECS, KINDS
from stratalog.registry.host import Host
from stratalog.spi import Codec, LogOpened, Provider, SegmentRolled, hookimpl, hooks

MakePlugin = Callable[..., types.ModuleType]
MakeProvider = Callable[..., Provider[Codec]]

SPECS = {name: spec for name, spec in vars(hooks).items() if name.startswith("stratalog_")}
LOG = TopicPartition("orders", 0)


def recording_listener(heard: list[object]) -> Callable[[object], None]:
    """Return a listener that adds its events to the list. pluggy uses the name of its parameter."""

    def listen(event: object) -> None:
        heard.append(event)

    return listen


def opened() -> LogOpened:
    return LogOpened(log=LOG, log_start=0, log_end=7)


def arguments(function: Callable[..., object]) -> list[tuple[str, object]]:
    parameters = inspect.signature(function, eval_str=True).parameters.values()
    return [(parameter.name, parameter.annotation) for parameter in parameters]


def test_there_are_hooks() -> None:
    assert len(SPECS) == 24


@pytest.mark.parametrize("name", [name for name in SPECS if not name.startswith("stratalog_on_")])
def test_each_collecting_hook_has_a_kind_or_offers_commands_and_has_no_arguments(name: str) -> None:
    assert name in {*(kind.hook for kind in KINDS), "stratalog_commands"}
    assert arguments(SPECS[name]) == []


@pytest.mark.parametrize("event_type", get_args(events.Event))
def test_each_event_has_a_listener_and_reaches_it(make_plugin: MakePlugin, event_type: type[events.Event]) -> None:
    listening = [name for name, spec in SPECS.items() if event_type in dict(arguments(spec)).values()]
    assert len(listening) == 1
    host, heard = Host(DeadlineCalls()), list[object]()
    hook = listening[0].removeprefix("stratalog_")
    host.register(make_plugin("acme", **{hook: recording_listener(heard)}), "acme")
    event = object.__new__(event_type)  # the listener ignores the fields
    host.notify(event)
    assert heard == [event]


def test_every_event_class_is_in_the_union() -> None:
    classes = {
        member for member in vars(events).values() if inspect.isclass(member) and member.__module__ == events.__name__
    }
    assert classes == set(get_args(events.Event))


def test_offers_are_reported_by_plugin(make_plugin: MakePlugin, provider: MakeProvider) -> None:
    host = Host(DeadlineCalls())
    first, second = provider("one"), provider("two")
    host.register(make_plugin("b", codecs=[second]), "b")
    host.register(make_plugin("a", codecs=iter([first])), "a")
    host.register(make_plugin("c", tier_layouts=()), "c")
    assert [(answer.plugin, answer.offers, answer.error) for answer in host.providers(CODECS)] == [
        ("a", (first,), None),
        ("b", (second,), None),
    ]


def test_a_collecting_hook_that_raises_stops_no_other(make_plugin: MakePlugin, provider: MakeProvider) -> None:
    def half() -> Any:
        yield provider("half")
        raise RuntimeError("no more")

    host = Host(DeadlineCalls())
    host.register(make_plugin("a", codecs=half), "a")
    host.register(make_plugin("b", codecs=[provider("whole")]), "b")
    broken, fine = host.providers(CODECS)
    assert isinstance(broken.error, RuntimeError)
    assert broken.offers == ()
    assert [offer.name for offer in fine.offers] == ["whole"]


@pytest.mark.parametrize("answer", [[object()], 5, "zstd"])
def test_an_offer_that_is_no_provider_is_an_error(make_plugin: MakePlugin, answer: object) -> None:
    host = Host(DeadlineCalls())
    host.register(make_plugin("acme", codecs=answer), "acme")
    assert host.providers(CODECS)[0].error is not None


def test_a_hook_that_answers_none_offers_nothing(make_plugin: MakePlugin) -> None:
    host = Host(DeadlineCalls())
    host.register(make_plugin("acme", codecs=lambda: None), "acme")
    assert host.providers(CODECS)[0].offers == ()


def refused(plugin: object) -> str:
    host = Host(DeadlineCalls())
    with pytest.raises(PluginError) as caught:
        host.register(plugin, "acme")
    assert "acme" not in host
    assert not host.is_registered(plugin)
    host.register(_good(), "acme")  # the name can be used again
    return str(caught.value)


def _good() -> object:
    class Good:
        @hookimpl
        def stratalog_codecs(self) -> tuple[()]:
            return ()

    return Good()


def test_a_misspelt_hook_is_refused_with_the_right_spelling(make_plugin: MakePlugin) -> None:
    text = refused(make_plugin("acme", codex=[], tier_layouts=[]))
    assert "stratalog_codex" in text
    assert "did you mean stratalog_codecs?" in text


def test_a_misspelt_hook_leaves_nothing_of_the_plugin_behind(make_plugin: MakePlugin, provider: MakeProvider) -> None:
    """A refused plugin was once unregistered only in part, and its other hooks were still called."""
    host = Host(DeadlineCalls())
    with pytest.raises(PluginError):
        host.register(make_plugin("acme", codex=[], codecs=[provider("zstd")]), "acme")
    assert host.providers(CODECS) == ()


def takes_engine(engine: object) -> tuple[()]:
    del engine
    return ()


def test_an_argument_that_the_spec_lacks_is_refused(make_plugin: MakePlugin) -> None:
    assert "engine" in refused(make_plugin("acme", codecs=takes_engine))


def test_a_hook_without_hookimpl_is_refused(make_plugin: MakePlugin) -> None:
    plugin = make_plugin("acme", tier_layouts=[])
    plugin.__dict__["stratalog_codecs"] = lambda: ()
    assert "stratalog_codecs is not decorated" in refused(plugin)


@pytest.mark.parametrize("options", [True, None, "x"])
def test_a_hook_with_other_options_than_those_of_hookimpl_is_refused(make_plugin: MakePlugin, options: object) -> None:
    plugin = make_plugin("acme", tier_layouts=[])

    def stratalog_codecs() -> tuple[()]:
        return ()

    vars(stratalog_codecs)["stratalog_impl"] = options
    vars(plugin)["stratalog_codecs"] = stratalog_codecs
    assert "stratalog_codecs is not decorated" in refused(plugin)


def test_a_plugin_without_hooks_is_refused() -> None:
    assert "no stratalog hook" in refused(types.ModuleType("acme"))


def test_a_hook_under_another_name_is_refused() -> None:
    plugin = types.ModuleType("acme")
    plugin.__dict__["anything"] = hookimpl(specname="stratalog_codecs")(lambda: ())
    assert "specname" in refused(plugin)


def test_a_plugin_that_cannot_be_hashed_is_refused() -> None:
    @dataclass  # an object with __eq__ and without __hash__, as of a mutable data class
    class Unhashable:
        @hookimpl
        def stratalog_codecs(self) -> tuple[()]:
            return ()

    assert "hash" in refused(Unhashable())


def test_the_same_plugin_or_name_twice_is_refused_and_the_first_stays(make_plugin: MakePlugin) -> None:
    host, plugin = Host(DeadlineCalls()), make_plugin("acme", codecs=[])
    host.register(plugin, "acme")
    for duplicate, name in ((plugin, "again"), (plugin, "acme"), (_good(), "acme")):
        with pytest.raises(PluginError, match="registered already"):
            host.register(duplicate, name)
    assert [answer.plugin for answer in host.providers(CODECS)] == ["acme"]


def test_one_plugin_can_be_reported_alone(make_plugin: MakePlugin) -> None:
    host, first, second = Host(DeadlineCalls()), list[object](), list[object]()
    host.register(make_plugin("a", on_log_opened=recording_listener(first)), "a")
    host.register(make_plugin("b", on_log_opened=recording_listener(second)), "b")
    host.register(make_plugin("c", codecs=[]), "c")
    assert host.listening(LogOpened) == ("a", "b")
    assert host.listening(SegmentRolled) == ()
    host.notify(opened(), "b")
    assert (len(first), len(second)) == (0, 1)


def test_an_unregistered_plugin_gets_no_event_and_offers_nothing(make_plugin: MakePlugin) -> None:
    host, heard = Host(DeadlineCalls()), list[object]()
    host.register(make_plugin("acme", codecs=[], on_log_opened=recording_listener(heard)), "acme")
    host.unregister("acme")
    host.notify(opened())
    assert host.providers(CODECS) == ()
    assert heard == []


def test_a_listener_that_raises_is_logged_and_counted_and_the_rest_hear(
    make_plugin: MakePlugin, caplog: pytest.LogCaptureFixture
) -> None:
    host, heard, event = Host(DeadlineCalls()), list[object](), opened()

    def angry(event: LogOpened) -> None:
        raise RuntimeError(f"not {event.log}")

    host.register(make_plugin("a", on_log_opened=recording_listener(heard)), "a")
    host.register(make_plugin("b", on_log_opened=angry), "b", "plugin b of acme 1.0")
    host.register(make_plugin("c", on_log_opened=recording_listener(heard)), "c")
    with caplog.at_level(logging.ERROR, logger="stratalog.registry"):
        host.notify(event)
        host.notify(event)
    assert heard == [event] * 4
    assert host.listener_failures == {"b": 2}
    assert [record.exc_info is not None for record in caplog.records] == [True, True]
    assert "stratalog_on_log_opened of plugin b of acme 1.0 failed" in caplog.text


def test_an_event_reaches_its_own_listeners_only(make_plugin: MakePlugin) -> None:
    host, heard = Host(DeadlineCalls()), list[object]()
    host.register(make_plugin("acme", on_log_opened=recording_listener(heard)), "acme")
    host.notify(SegmentRolled(log=LOG, base_offset=3))
    assert heard == []


def test_two_hosts_share_nothing(make_plugin: MakePlugin, provider: MakeProvider) -> None:
    first, second, plugin = Host(DeadlineCalls()), Host(DeadlineCalls()), make_plugin("acme", codecs=[provider("zstd")])
    first.register(plugin, "acme")
    assert second.providers(CODECS) == ()
    second.register(plugin, "acme")
    first.unregister("acme")
    assert len(second.providers(CODECS)) == 1
