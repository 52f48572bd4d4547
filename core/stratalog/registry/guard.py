"""The guard of calls into components: it converts errors to StorageErrors, checks result types and sets deadlines.

Calls that are made for each record or batch are not guarded: formats, codecs and index formats are guarded when they
open.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, NoReturn, TypeVar, cast

from stratalog.config.topic import TopicConfig
from stratalog.env.deadlines import DeadlineCalls, OverdueError
from stratalog.env.threads import is_own_thread
from stratalog.errors import PluginError, StorageError
from stratalog.spi.cleanup import Action, CleanupPolicy, LogSummary, RecordFilter, RewriteJob

T = TypeVar("T")

_ADVICE: Final = "update the plugin, or add its name to plugins.block"


@dataclass(frozen=True, slots=True)
class Guard:
    """The guard of one component. Thread-safe.

    Attributes:
        title: kind, name and version of the component, for texts.
        origin: the plugin that offers the component, its distribution and version, for texts.
        is_bundled: True if the component is in the same distribution as stratalog, and is tested and released with it.
        calls: the threads for calls with a deadline; None runs the calls on the caller's thread.
    """

    title: str
    origin: str
    is_bundled: bool = False
    calls: DeadlineCalls | None = None

    def __str__(self) -> str:
        return f"{self.title} ({self.origin})" if self.origin else self.title

    def calling(self, method: str) -> _Calling:
        """Return a context for a call into the component: ``with guard.calling("write"): ...``.

        An exception that is not a StorageError leaves the context as a PluginError, with the exception as its cause.
        KeyboardInterrupt and SystemExit are not converted on a thread of the caller. On a thread that stratalog started
        they become a PluginError too, because they would silently end the thread.
        """
        return _Calling(self, method)

    def call(self, method: str, work: Callable[[], T], *, times: int = 1, wait_ms: float | None = None) -> T:
        """Return the result of ``work``, a call into the component; exceptions as ``calling``.

        The call runs on a separate thread. After the deadline, the caller no longer waits for this thread. A component
        that comes with stratalog is called on the caller's thread, because it keeps its deadlines itself.

        Args:
            method: name of the called method.
            work: function that calls the method.
            times: factor by which ``plugin.deadline.ms`` is multiplied for this call.
            wait_ms: the deadline in milliseconds, instead of ``plugin.deadline.ms``.

        Raises:
            PluginError: the call raised an exception that is not a StorageError, or it did not return in time. In the
                second case, the cause is an OverdueError.
        """

        def guarded() -> T:
            with self.calling(method):
                return work()

        if self.calls is None or self.is_bundled:
            return guarded()
        wait_s = self.calls.wait_s * times if wait_ms is None else max(wait_ms, 0) / 1000
        try:
            return self.calls.call(str(self), method, guarded, wait_s)
        except OverdueError as error:
            raise PluginError(f"{self}: {method} {error}; {_ADVICE}") from error

    def typed(self, method: str, value: object, wanted: type[T]) -> T:
        """Return ``value``, or raise PluginError if it is not a ``wanted``."""
        self.check_type(method, value, wanted)
        return cast(T, value)

    def check_type(self, method: str, value: object, wanted: type[object]) -> None:
        """Raise PluginError if ``value`` is not a ``wanted``, which may be an abstract class."""
        if not isinstance(value, wanted):
            self.refuse(method, f"returned {_described(value)}, not {wanted.__name__}")

    def refuse(self, method: str, reason: str) -> NoReturn:
        """Raise the PluginError of a call that broke the contract; ``reason`` follows the method's name in the text."""
        raise PluginError(f"{self}: {method} {reason}; {_ADVICE}")

    def failure(self, method: str, error: BaseException) -> PluginError:
        """Return the PluginError of a call that raised ``error``."""
        text = f"{type(error).__name__}: {error}".rstrip(": ")
        found = PluginError(f"{self}: {method} raised {text}; {_ADVICE}")
        found.__cause__ = error
        return found


def guarded_policy(policy: CleanupPolicy, guard: Guard) -> CleanupPolicy:
    """Return a policy whose calls have a deadline, and which raises only StorageErrors.

    The returned policy has a record filter if ``policy`` has one. The filter itself is not guarded, because it is
    called for each piece of a segment.
    """
    if type(policy).record_filter is CleanupPolicy.record_filter:
        return _GuardedPolicy(policy, guard)
    return _GuardedRewriting(policy, guard)


class _GuardedPolicy(CleanupPolicy):
    """A guarded policy without a record filter."""

    def __init__(self, policy: CleanupPolicy, guard: Guard) -> None:
        self._policy, self._guard = policy, guard

    def plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
        """As ``CleanupPolicy.plan``."""
        return self._guard.call("plan", lambda: tuple(self._policy.plan(log, config, now_ms)))

    def local_plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
        """As ``CleanupPolicy.local_plan``."""
        return self._guard.call("local_plan", lambda: tuple(self._policy.local_plan(log, config, now_ms)))


class _GuardedRewriting(_GuardedPolicy):
    """A guarded policy with a record filter."""

    def record_filter(self, job: RewriteJob) -> RecordFilter:
        """As ``CleanupPolicy.record_filter``."""
        made = self._guard.call("record_filter", lambda: self._policy.record_filter(job))
        self._guard.check_type("record_filter", made, RecordFilter)
        return made


class _Calling:
    """One call into a component."""

    __slots__ = ("_guard", "_method")

    def __init__(self, guard: Guard, method: str) -> None:
        self._guard, self._method = guard, method

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or isinstance(error, StorageError | GeneratorExit):
            return
        if isinstance(error, Exception) or is_own_thread():
            raise self._guard.failure(self._method, error)


def _described(value: Any) -> str:  # Any: a plugin may return anything
    return "None" if value is None else f"a {type(value).__name__}"
