"""The guard round every call into a component: its errors become ours, and its results have the type they should have.

Calls that happen once a record or a batch are not guarded: formats, codecs and index formats are guarded when they open.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, NoReturn, TypeVar, cast

from stratalog.env.deadlines import DeadlineCalls, OverdueError
from stratalog.env.threads import is_own_thread
from stratalog.errors import PluginError, StorageError

T = TypeVar("T")

_ADVICE: Final = "update the plugin, or block it with plugins.block"


@dataclass(frozen=True, slots=True)
class Guard:
    """The calls into one component. Thread-safe.

    Attributes:
        title: kind, name and version of the component, for texts.
        origin: the plugin that offers the component, its distribution and version, for texts.
        is_bundled: True if the component comes in the same distribution as stratalog, and is tested and released with it.
        calls: where calls with a deadline run; None runs them on the caller's thread.
    """

    title: str
    origin: str
    is_bundled: bool = False
    calls: DeadlineCalls | None = None

    def __str__(self) -> str:
        return f"{self.title} ({self.origin})" if self.origin else self.title

    def calling(self, method: str) -> _Calling:
        """Return a context in which the component is called: ``with guard.calling("write"): ...``.

        An exception that is no StorageError leaves the context as a PluginError, with the exception as its cause.
        KeyboardInterrupt and SystemExit leave the context as they are on a thread of the caller. On a thread that stratalog
        started they become a PluginError, too, because they would silently end the thread.
        """
        return _Calling(self, method)

    def call(self, method: str, work: Callable[[], T], *, times: int = 1, wait_ms: float | None = None) -> T:
        """Return what ``work``, a call into the component, returns; exceptions as ``calling``.

        The call runs on a thread of its own, and is left to it when its deadline has passed. A component that comes with
        stratalog is called on the caller's thread: it keeps its deadlines itself.

        Args:
            method: that is called.
            work: calls it.
            times: how often the call has ``plugin.deadline.ms``.
            wait_ms: the deadline, if it is another one.

        Raises:
            PluginError: the call raised what is no StorageError, or did not return in time; the cause is an OverdueError
                then.
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
        """Return ``value``, or raise PluginError if it is no ``wanted``."""
        self.check_type(method, value, wanted)
        return cast(T, value)

    def check_type(self, method: str, value: object, wanted: type[object]) -> None:
        """Raise PluginError if ``value`` is no ``wanted``, which may be an abstract class."""
        if not isinstance(value, wanted):
            self.refuse(method, f"returned {_described(value)}, not {wanted.__name__}")

    def refuse(self, method: str, reason: str) -> NoReturn:
        """Raise the PluginError of a call that broke the contract: ``reason`` continues "its method ..."."""
        raise PluginError(f"{self}: {method} {reason}; {_ADVICE}")

    def failure(self, method: str, error: BaseException) -> PluginError:
        """Return the PluginError of a call that raised ``error``."""
        text = f"{type(error).__name__}: {error}".rstrip(": ")
        found = PluginError(f"{self}: {method} raised {text}; {_ADVICE}")
        found.__cause__ = error
        return found


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


def _described(value: Any) -> str:  # Any: whatever a plugin returned
    return "None" if value is None else f"a {type(value).__name__}"
