from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from stratalog.cleaning.plan.policy_actions import has_filter
from stratalog.config.engine_settings import Limits
from stratalog.config.topic import TopicConfig
from stratalog.env import Env, PosixVfs
from stratalog.env.handles import HandlePool
from stratalog.env.threads import OwnThread
from stratalog.errors import CorruptObjectError, PluginError, StoreTimeoutError
from stratalog.registry.component_kinds import CODECS
from stratalog.registry.guard import Guard
from stratalog.registry.guarded_parts import guarded_policy
from stratalog.registry.resolve import Catalogue, Offer
from stratalog.spi import Codec, OpenContext, Provider
from stratalog.spi.cleanup import Action, CleanupPolicy, LogSummary, RecordFilter, RewriteJob
from stratalog.spi.codecs import CodecTable

GUARD = Guard("tier layout 'odd' version 3", "plugin odd of odd-layouts 2.1")
POLICY_GUARD = Guard("cleanup policy 'odd' version 1", "plugin odd of odd-policies 2.1")
NOTHING: Any = None  # Any: these policies ignore their arguments


def raised_by(error: BaseException) -> BaseException:
    """Return the error that the guard raises if the component raises ``error``."""
    with pytest.raises(BaseException) as caught, GUARD.calling("write"):  # noqa: PT011 - the test checks the type
        raise error
    return caught.value


def test_an_error_of_a_component_names_the_component_its_distribution_and_the_method() -> None:
    cause = ZeroDivisionError("division by zero")
    error = raised_by(cause)
    assert isinstance(error, PluginError)
    assert error.__cause__ is cause
    assert str(error).startswith(
        "tier layout 'odd' version 3 (plugin odd of odd-layouts 2.1): write raised ZeroDivisionError: division by zero"
    )


def test_an_error_without_a_text_has_the_name_of_its_type() -> None:
    assert "write raised AssertionError; " in str(raised_by(AssertionError()))


@pytest.mark.parametrize(
    "error", [StoreTimeoutError("late", "key"), KeyboardInterrupt(), SystemExit(2), GeneratorExit()], ids=repr
)
def test_our_errors_and_those_that_end_the_callers_thread_pass(error: BaseException) -> None:
    assert raised_by(error) is error


def test_a_system_exit_on_an_engine_thread_is_an_error_of_the_component() -> None:
    errors = list[BaseException]()
    thread = OwnThread(lambda: errors.append(raised_by(SystemExit(2))), "test")
    thread.start()
    thread.join()
    assert [type(error) for error in errors] == [PluginError]


def test_a_result_of_another_type_is_refused() -> None:
    assert GUARD.of_type("read_index", b"bytes", bytes) == b"bytes"
    with pytest.raises(PluginError, match=r"2\.1\): read_index returned None, not bytes"):
        GUARD.of_type("read_index", None, bytes)
    with pytest.raises(PluginError, match="returned a str, not bytes"):
        GUARD.of_type("read_index", "text", bytes)


def _raising(context: OpenContext) -> Codec:
    raise ZeroDivisionError(str(context.location))


def _wrong(context: OpenContext) -> Codec:
    return cast(Codec, str(context.location))


@pytest.mark.parametrize(
    ("opener", "text"),
    [(_raising, "open raised ZeroDivisionError: there"), (_wrong, "open returned a str, not Codec")],
    ids=["raises", "returns another type"],
)
def test_a_component_that_does_not_open_is_named(opener: Callable[[OpenContext], Codec], text: str) -> None:
    context = OpenContext(
        env=Env(), limits=Limits(), handles=HandlePool(PosixVfs(), 8), codecs=CodecTable(), location="there"
    )
    provider = Provider(name="odd", version=3, open=opener)
    catalogue: Catalogue[Codec] = Catalogue(CODECS, [Offer(provider, "odd_plugin", "odd-codecs", "2.1")])
    with pytest.raises(PluginError) as caught:
        catalogue.open(provider, context)
    assert f"codec 'odd' version 3 (plugin odd_plugin of odd-codecs 2.1): {text}" in str(caught.value)


def test_bundled_is_what_the_distribution_of_the_core_offers() -> None:
    provider = Provider(name="odd", open=_raising)
    for distribution, expected in (("stratalog", True), ("stratalog-odd", False), ("", False)):
        catalogue: Catalogue[Codec] = Catalogue(CODECS, [Offer(provider, "odd_plugin", distribution, "1.0")])
        assert catalogue.guard(provider).is_bundled is expected


class Failing(CleanupPolicy):
    """Policy that raises in each method."""

    def plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
        del log, config, now_ms
        raise ZeroDivisionError("plan")

    def local_plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
        del log, config, now_ms
        raise ZeroDivisionError("local")


class Rewriting(Failing):
    """Policy whose ``record_filter`` returns an object that is not a filter."""

    def record_filter(self, job: RewriteJob) -> RecordFilter:
        return cast(RecordFilter, str(job))


def test_an_error_of_a_policy_names_the_policy() -> None:
    guarded = guarded_policy(Failing(), POLICY_GUARD)
    with pytest.raises(PluginError, match=r"'odd' version 1 \(plugin odd of odd-policies 2\.1\): plan raised Zero"):
        guarded.plan(NOTHING, TopicConfig(), 0)
    with pytest.raises(PluginError, match="local_plan raised Zero"):
        guarded.local_plan(NOTHING, TopicConfig(), 0)


def test_an_object_that_is_no_filter_is_refused() -> None:
    with pytest.raises(PluginError, match="record_filter returned a str, not RecordFilter"):
        guarded_policy(Rewriting(), POLICY_GUARD).record_filter(NOTHING)


def test_a_guarded_policy_rewrites_if_the_policy_does() -> None:
    assert has_filter(guarded_policy(Rewriting(), POLICY_GUARD))
    assert not has_filter(guarded_policy(Failing(), POLICY_GUARD))


def test_an_iterator_of_another_type_is_refused() -> None:
    with pytest.raises(PluginError, match=r"2\.1\): read returned None, not Iterable"):
        list(GUARD.items("read", lambda: cast("list[bytes]", None)))


def test_damage_that_a_plugin_may_have_made_names_the_plugin() -> None:
    with (
        pytest.raises(CorruptObjectError, match=r"wrong hash, read by tier layout 'odd' .*2\.1\) file=key"),
        GUARD.naming_suspect(),
    ):
        raise CorruptObjectError("wrong hash", "key")
    bundled = Guard("tier layout 'own' version 1", "plugin formats of stratalog 1.0", is_bundled=True)
    with pytest.raises(CorruptObjectError, match="wrong hash file=key"), bundled.naming_suspect():
        raise CorruptObjectError("wrong hash", "key")
