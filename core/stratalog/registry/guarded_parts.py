"""Guards of the components that are called for each record, batch or file, and that do not come with stratalog.

A guarded part is an object of a class of ``stratalog.spi`` that calls the plugin's object. It checks each result: its
type against the signature in ``stratalog.spi``, and its contents with ``result_checks``. The calls run on the caller's
thread without a deadline, because another thread for each batch would cost more time than the call itself. Calls in
progress are registered: if one of them does not return, ``Engine.close`` waits for it only for a limited time.

The calls of a guarded cleanup policy, and the requests to a guarded object store, have a deadline. The record filter of
a guarded policy is a guarded part.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final, TypeVar, cast

from stratalog.config.topic import TopicConfig
from stratalog.registry.guard import Guard
from stratalog.registry.result_checks import CHECKS, LAZY_CHECKS
from stratalog.registry.result_types import ResultType, attributes_of, members_of, result_type
from stratalog.spi.cleanup import Action, CleanupPolicy, LogSummary, RecordFilter, RewriteJob
from stratalog.spi.codecs import Codec
from stratalog.spi.formats import RecordFormat
from stratalog.spi.indexes import IndexBuilder, IndexFormat, IndexReader
from stratalog.spi.segment_store import IndexFile, LogFiles, SegmentFile, SegmentStore

T = TypeVar("T")

_NESTED: Final[Mapping[tuple[type[Any], str], type[Any]]] = {  # Any: classes of every kind
    (IndexFormat, "builder"): IndexBuilder,
    (IndexFormat, "reader"): IndexReader,
    (SegmentStore, "open_log"): LogFiles,
    (LogFiles, "open_segment"): SegmentFile,
    (LogFiles, "open_index"): IndexFile,
}
GUARDED_PARTS: Final = frozenset({RecordFormat, Codec, IndexFormat})
"""Classes of components that an engine opens at their first use. Such a component becomes a guarded part."""


def guarded_part(inner: T, part: type[Any], guard: Guard) -> T:
    """Return an object of the class ``part`` that calls ``inner`` and checks its results.

    ``inner`` is the plugin's object, and ``part`` its abstract class in ``stratalog.spi``. If ``inner`` comes with
    stratalog, return ``inner`` itself.
    """
    if guard.is_bundled:
        return inner
    guarded: Any = _class_of(cast("Hashable", part))()
    guarded.inner, guarded.guard = inner, guard
    return cast(T, guarded)


def guard_of(part: object) -> Guard | None:
    """Return the guard of ``part``; None if ``part`` is not guarded, because it comes with stratalog."""
    return part.guard if isinstance(part, Guarded) else None


def place_in(part: object, path: str) -> str:
    """Return ``path`` for an error text, with the plugin's name if ``part`` is guarded."""
    guard = guard_of(part)
    return path if guard is None else f"{path} in {guard}"


class Guarded:
    """Base class of guarded parts: objects that call a plugin's object and check its results."""

    inner: object
    guard: Guard


@cache
def _class_of(part: Hashable) -> type[Any]:
    assert isinstance(part, type)
    body: dict[str, Any] = {name: property(_attribute(name)) for name in attributes_of(part)}
    for name, member in members_of(part):
        if isinstance(member, property):
            body[name] = property(_make_method(part, name, result_type(member.fget), is_property=True))
        else:
            body[name] = _make_method(part, name, result_type(member), is_property=False)
    return type(f"Guarded{part.__name__}", (Guarded, part), body)


def _attribute(name: str) -> Callable[[Any], Any]:
    return lambda self: getattr(self.inner, name)


def _make_method(part: type[Any], name: str, declared: ResultType, *, is_property: bool) -> Callable[..., Any]:
    check, lazy_check = CHECKS.get((part, name)), LAZY_CHECKS.get((part, name))
    nested = _NESTED.get((part, name))
    default: Callable[..., Any] = getattr(part, name)

    def method(self: Any, *args: Any, **keywords: Any) -> Any:
        guard: Guard = self.guard
        with guard.calling(name, FileExistsError if name == "open_log" and keywords.get("create") else ()):
            state = None if check is None or check.before is None else check.before(self, *args, **keywords)
            if is_property:
                result = getattr(self.inner, name)
            elif getattr(type(self.inner), name, None) is default:  # the default method calls guarded methods
                result = default(self, *args, **keywords)
            else:
                result = getattr(self.inner, name)(*args, **keywords)
        if not isinstance(result, declared.allowed):
            guard.refuse_type(name, result, declared.text)
        if declared.is_lazy:
            items = _check_lazily(guard, name, result, declared)
            return items if lazy_check is None else lazy_check(guard, self, items, *args, **keywords)
        if declared.items and result is not None:
            _check_items(guard, name, result, declared)
        if check is not None:
            with guard.calling(name):  # the check reads columns that the plugin made
                defect = check.find_defect(self, state, result, *args, **keywords)
            if defect:
                guard.refuse(name, defect)
        return result if nested is None else guarded_part(result, nested, guard)

    return method


def _check_items(guard: Guard, name: str, result: Iterable[Any], declared: ResultType) -> None:
    for item in result:
        if not isinstance(item, declared.items):
            guard.refuse_type(name, item, declared.text)


def _check_lazily(guard: Guard, name: str, result: Iterable[Any], declared: ResultType) -> Iterator[Any]:
    for item in guard.items(name, lambda: result):
        if not isinstance(item, declared.items):
            guard.refuse_type(name, item, declared.text)
        yield item


def guarded_policy(policy: CleanupPolicy, guard: Guard) -> CleanupPolicy:
    """Return a policy that calls ``policy`` with a deadline. Exceptions that are not StorageErrors become PluginErrors.

    If ``policy`` has a record filter, the returned policy has a record filter that is a guarded part
    (``guarded_parts``).
    """
    if type(policy).record_filter is CleanupPolicy.record_filter:
        return _GuardedPolicy(policy, guard)
    return _GuardedRewriting(policy, guard)


class _GuardedPolicy(Guarded, CleanupPolicy):
    """A guarded policy without a record filter."""

    inner: CleanupPolicy

    def __init__(self, policy: CleanupPolicy, guard: Guard) -> None:
        self.inner, self.guard = policy, guard

    def plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
        """Call ``plan`` of the plugin's policy with a deadline, and return its result."""
        return self._actions("plan", lambda: self.inner.plan(log, config, now_ms))

    def local_plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
        """Call ``local_plan`` of the plugin's policy with a deadline, and return its result."""
        return self._actions("local_plan", lambda: self.inner.local_plan(log, config, now_ms))

    def _actions(self, method: str, plan: Callable[[], Iterable[Action]]) -> tuple[Action, ...]:
        def work() -> tuple[Action, ...]:
            actions = plan()
            self.guard.check_type(method, actions, Iterable)
            return tuple(actions)

        return self.guard.call(method, work)


class _GuardedRewriting(_GuardedPolicy):
    """A guarded policy with a record filter."""

    def record_filter(self, job: RewriteJob) -> RecordFilter:
        """Return a guarded part that calls a new filter of the plugin's policy.

        Only the creation of the filter has a deadline.
        """
        record_filter = self.guard.call("record_filter", lambda: self.inner.record_filter(job))
        self.guard.check_type("record_filter", record_filter, RecordFilter)
        return guarded_part(record_filter, RecordFilter, self.guard)
