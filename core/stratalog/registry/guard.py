"""The guard of calls into components: it converts errors to StorageErrors, checks result types and sets deadlines.

``guarded_parts`` uses the guard for components that are called for each record, batch or file, and that do not come
with stratalog.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NoReturn, TypeVar

from stratalog.env.deadlines import DeadlineCalls, OverdueError
from stratalog.env.progress import is_from_progress
from stratalog.env.threads import is_own_thread
from stratalog.errors import CorruptionError, PluginError, StorageError

T = TypeVar("T")

_ADVICE: Final = "update the plugin, or add its name to plugins.block"


@dataclass(frozen=True, slots=True)
class Guard:
    """The guard of one component. Thread-safe.

    Attributes:
        title: kind, name and version of the component, for error texts.
        origin: the plugin that offers the component, its distribution and version, for error texts.
        is_bundled: True if the component comes with stratalog, in the same distribution.
        calls: the threads for calls with a deadline; None runs the calls on the caller's thread.
    """

    title: str
    origin: str
    is_bundled: bool = False
    calls: DeadlineCalls | None = None

    def __str__(self) -> str:
        return f"{self.title} ({self.origin})" if self.origin else self.title

    def calling(self, method: str, expected: type[Exception] | tuple[()] = ()) -> _Calling:
        """Return a context for one call into the component: ``with guard.calling("write"): ...``.

        The context converts an exception that is not a StorageError to a PluginError, with the exception as its cause.
        KeyboardInterrupt and SystemExit are converted only on a thread that stratalog started, because such a thread
        would end without a message. An exception of the caller's progress callback is not converted.

        ``Engine.close`` waits only for a limited time for such a call.

        Args:
            method: name of the called method.
            expected: class of the exception that the plugin interface allows for this method. This exception is not
                converted. () if there is none.
        """
        return _Calling(self, method, self.calls, expected)

    def converting(self, method: str) -> _Calling:
        """Return a context that converts exceptions like ``calling``, for use in a call that already has a deadline."""
        return _Calling(self, method, None, ())

    def items(self, method: str, make: Callable[[], Iterable[T]]) -> Iterator[T]:
        """Yield the items of the iterator that ``make`` gets from the component.

        Exceptions are converted as in ``calling``. A PluginError is raised if the result of ``make`` is not iterable.
        """
        with self.calling(method):
            iterable = make()
            self.check_type(method, iterable, Iterable)
            iterator = iter(iterable)
        while True:
            with self.calling(method):
                try:
                    item = next(iterator)
                except StopIteration:
                    return
            yield item

    def call(
        self,
        method: str,
        work: Callable[[], T],
        *,
        times: int = 1,
        wait_ms: float | None = None,
        close: Callable[[T], object] | None = None,
    ) -> T:
        """Call ``work``, which calls the component, and return its result. Exceptions are converted as in ``calling``.

        The call runs on a separate thread. After the deadline, the caller does not wait for this thread any longer. If
        the component comes with stratalog, or ``calls`` is None, the caller's thread makes the call without a deadline.

        Args:
            method: name of the called method.
            work: function that calls the method.
            times: factor by which ``plugin.deadline.ms`` is multiplied for this call.
            wait_ms: the deadline in milliseconds, instead of ``plugin.deadline.ms``.
            close: closes a result that arrives after the deadline; None if there is nothing to close.

        Raises:
            PluginError: the call raised an exception that is not a StorageError. Or the call did not return before the
                deadline, or too many earlier calls into the component still run; the cause is then an OverdueError.
            StorageError: the call raised this error.
        """
        if self.calls is None or self.is_bundled:
            with self.calling(method):
                return work()

        def run_guarded() -> T:
            with self.converting(method):
                return work()

        wait_s = self.calls.wait_s * times if wait_ms is None else max(wait_ms, 0) / 1000
        try:
            return self.calls.call(str(self), method, run_guarded, wait_s, close)
        except OverdueError as error:
            raise PluginError(f"{self}: {method} {error}; {_ADVICE}") from error

    @property
    def is_stranger(self) -> bool:
        """True if the component comes from a plugin that is not stratalog's own."""
        return bool(self.origin) and not self.is_bundled

    @contextlib.contextmanager
    def naming_suspect(self) -> Iterator[None]:
        """Return a context that adds the component's name to the text of a CorruptionError that its block raises.

        The name shows that the component may have damaged the bytes. A component of stratalog is not named.
        """
        try:
            yield
        except CorruptionError as error:
            if self.is_stranger and str(self) not in error.reason:
                error.reason = f"{error.reason}, read by {self}"
            raise

    def of_type(self, method: str, value: object, expected: type[T]) -> T:
        """Return ``value``; raise PluginError if it is not an instance of ``expected``."""
        if not isinstance(value, expected):
            self.refuse_type(method, value, expected.__name__)
        return value

    def check_type(self, method: str, value: object, expected: type[object]) -> None:
        """Raise PluginError if ``value`` is not an instance of ``expected``, which may be an abstract class."""
        if not isinstance(value, expected):
            self.refuse_type(method, value, expected.__name__)

    def check_none(self, method: str, value: object) -> None:
        """Raise PluginError if ``value``, the result of a method that must return None, is not None."""
        if value is not None:
            self.refuse_type(method, value, "None")

    def refuse_type(self, method: str, value: object, expected: str) -> NoReturn:
        """Raise the PluginError of a call that returned ``value`` instead of a value of the type ``expected``."""
        if inspect.iscoroutine(value):
            value.close()  # prevents Python's warning that the coroutine was never awaited
            self.refuse(method, "is an async def, but the contract has no asynchronous methods: use def")
        self.refuse(method, f"returned {_describe(value)}, not {expected}")

    def refuse(self, method: str, reason: str) -> NoReturn:
        """Raise the PluginError of a call that broke the plugin interface. Its text contains ``reason``."""
        raise PluginError(f"{self}: {method} {reason}; {_ADVICE}")

    def failure(self, method: str, error: BaseException) -> PluginError:
        """Return the PluginError of a call that raised ``error``."""
        text = f"{type(error).__name__}: {error}".rstrip(": ")
        plugin_error = PluginError(f"{self}: {method} raised {text}; {_ADVICE}")
        plugin_error.__cause__ = error
        return plugin_error


class _Calling:
    """Context of one call into a component: converts its exceptions, and registers the call until it returns."""

    __slots__ = ("_calls", "_expected", "_guard", "_method")

    def __init__(
        self, guard: Guard, method: str, calls: DeadlineCalls | None, expected: type[Exception] | tuple[()]
    ) -> None:
        self._guard, self._method, self._expected = guard, method, expected
        self._calls = None if guard.is_bundled else calls

    def __enter__(self) -> None:
        if self._calls is not None:
            self._calls.register(self)

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if self._calls is not None:
            self._calls.unregister(self)
        if error is None or isinstance(error, (StorageError, GeneratorExit, self._expected)) or is_from_progress(error):
            return
        if isinstance(error, Exception) or is_own_thread():
            raise self._guard.failure(self._method, error)

    def __str__(self) -> str:
        return f"{self._guard}: {self._method}"


def _describe(value: Any) -> str:  # Any: a plugin may return anything
    return "None" if value is None else f"a {type(value).__name__}"
