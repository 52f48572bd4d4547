"""Registration of plugins, and calls of their hooks. Only this module calls pluggy.

A hook is called separately for each plugin. A single call of pluggy for all plugins would stop at the first exception,
and its results would not name their plugins.
"""

from __future__ import annotations

import difflib
import inspect
import logging
import threading
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from types import FunctionType, MethodType, ModuleType
from typing import Any, Final, Generic, TypeVar

import pluggy

from stratalog.env.deadlines import DeadlineCalls
from stratalog.env.threads import is_own_thread
from stratalog.errors import PluginError
from stratalog.model.events import Event
from stratalog.registry.component_kinds import ComponentKind
from stratalog.spi import hooks
from stratalog.spi.providers import Provider
from stratalog.spi.service_contract import Command

_LOGGER: Final = logging.getLogger("stratalog.registry")
_PREFIX: Final = f"{hooks.PROJECT}_"
_SPEC_NAMES: Final = tuple(name for name in vars(hooks) if name.startswith(_PREFIX))
_OTHER_HOOKABLE: Final = (MethodType, staticmethod, classmethod)  # the types that pluggy accepts, besides functions
T = TypeVar("T")

_LISTENERS: Final[Mapping[type[Event], str]] = {
    getattr(hooks, vars(hooks)[name].__annotations__["event"]): name
    for name in _SPEC_NAMES
    if name.startswith(f"{_PREFIX}on_")
}
"""The hook of each type of event. The module with the hook specs imports the types by the names in its annotations."""


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """The result of one plugin's collecting hook: its offers, or an error if the hook failed or returned a wrong type.

    A collecting hook is a hook with which plugins offer components or commands.
    """

    plugin: str
    offers: tuple[T, ...] = ()
    error: Exception | None = None


class _Manager(pluggy.PluginManager):
    """Plugin manager that reads the functions of modules directly.

    pluggy inspects each attribute of a plugin with ``inspect.getattr_static``, which takes 20 us. In a module,
    ``vars`` returns the same function.
    """

    def parse_hookimpl_opts(self, plugin: Any, name: str) -> Any:
        """Return the options of a hook implementation; None if ``name`` is not a hook."""
        if not isinstance(plugin, ModuleType):
            return super().parse_hookimpl_opts(plugin, name)
        value = vars(plugin).get(name)
        if isinstance(value, FunctionType):
            options = getattr(value, f"{hooks.PROJECT}_impl", None)
            return options if isinstance(options, dict) else None
        return super().parse_hookimpl_opts(plugin, name) if isinstance(value, _OTHER_HOOKABLE) else None

    def parse_hookspec_opts(self, module_or_class: Any, name: str) -> Any:
        """Return the options of a hook specification; None if ``name`` is not a specification."""
        return getattr(vars(module_or_class).get(name), f"{hooks.PROJECT}_spec", None)


class Host:
    """The registered plugins of one engine, and the calls of their hooks.

    Plugins are registered on the thread that opens the engine. The listeners of a plugin run on one thread at a time.

    Args:
        calls: threads for calls with a deadline, for collecting hooks of plugins that do not come with stratalog.
    """

    def __init__(self, calls: DeadlineCalls) -> None:
        self._calls = calls
        self._manager = _Manager(hooks.PROJECT)
        self._manager.add_hookspecs(hooks)
        self._origins: dict[str, str] = {}
        self._strangers = set[str]()  # names of plugins that do not come with stratalog
        self._failures: Counter[str] = Counter()  # under _lock, because notifier threads write and any thread reads
        self._lock = threading.Lock()

    # --- plugins ---------------------------------------------------------------------------------------------------

    def register(self, plugin: object, name: str, origin: str = "", *, is_bundled: bool = False) -> None:
        """Register ``plugin``, or raise PluginError and leave the host unchanged.

        Args:
            plugin: the module or object with the hooks.
            name: name of the plugin.
            origin: name of the plugin and its distribution, for messages.
            is_bundled: True if the plugin comes with stratalog: its collecting hooks are then called without a deadline.
                Listeners never have a deadline.

        Raises:
            PluginError: a hook is misspelt, has arguments that its spec does not have, or is not decorated with
                ``hookimpl``; the plugin has no hook or cannot be hashed; the plugin or its name is already registered.
        """
        if not isinstance(plugin, Hashable):
            raise PluginError(f"plugin {name!r} cannot be hashed: pass a module, or an object with a __hash__")
        if name in self or self.is_registered(plugin):
            raise PluginError(f"plugin {name!r} is registered already")
        try:
            self._manager.register(plugin, name)
            self._origins[name] = origin or f"plugin {name}"
            self._manager.check_pending()  # without this, a misspelt hook is silently ignored
            self._check_hooks(plugin, name)
            if not is_bundled:
                self._strangers.add(name)
        except (pluggy.PluginValidationError, PluginError, ValueError) as error:  # ValueError: an equal plugin exists
            if name in self:  # pluggy does not remove a plugin that it refuses
                self._manager.unregister(name=name)
            raise PluginError(f"plugin {name!r} is refused: {error}{_spelling(plugin)}") from error

    def unregister(self, name: str) -> None:
        """Remove the plugin with this name. Its hooks are not called again, and the name can be registered again."""
        self._manager.unregister(name=name)
        self._strangers.discard(name)

    def is_registered(self, plugin: object) -> bool:
        """Return True if this object itself is registered; an equal object does not count."""
        return any(registered is plugin for registered in self._manager.get_plugins())

    def __contains__(self, name: str) -> bool:
        return self._manager.has_plugin(name)

    def _check_hooks(self, plugin: object, name: str) -> None:
        callers = {caller.name for caller in self._manager.get_hookcallers(plugin) or ()}
        for hook in sorted(callers | set(dir(plugin)).intersection(_SPEC_NAMES)):
            function = inspect.getattr_static(plugin, hook, None)
            is_implemented = hook in callers
            if function is not None and not is_implemented:
                raise PluginError(f"{hook} is not decorated with stratalog.spi.hookimpl")
            if function is None and is_implemented:
                raise PluginError(
                    f"{hook} is implemented with specname, which is not supported: name the function after the hook"
                )
        if not callers:
            raise PluginError(f"{name} has no stratalog hook")

    # --- components ------------------------------------------------------------------------------------------------

    def providers(self, kind: ComponentKind) -> tuple[Answer[Provider[Any]], ...]:  # Any: providers of every kind
        """Call the hook of ``kind`` of each plugin that has this hook; return one ``Answer`` for each call."""
        return self._ask(kind.hook, Provider)

    def commands(self) -> tuple[Answer[Command], ...]:
        """Call ``stratalog_commands`` of each plugin that has this hook; return one ``Answer`` for each call."""
        return self._ask("stratalog_commands", Command)

    # --- listeners -------------------------------------------------------------------------------------------------

    def listening(self, event: type[Event]) -> tuple[str, ...]:
        """Return the names of the plugins with a listener for this type of event, sorted."""
        return tuple(name for name, _ in self._callers(_LISTENERS[event]))

    def notify(self, event: Event, plugin: str | None = None) -> None:
        """Call all listeners for ``event``, or only the listener of ``plugin``. Log and count errors of listeners."""
        hook = _LISTENERS[type(event)]
        for name, caller in self._callers(hook):
            if plugin is None or name == plugin:
                self._notify_one(hook, name, caller, event)

    @property
    def listener_failures(self) -> dict[str, int]:
        """The number of failed listener calls of each plugin that has failures."""
        with self._lock:
            return dict(self._failures)

    # --- calling ---------------------------------------------------------------------------------------------------

    def _ask(self, hook: str, item: type[object]) -> tuple[Answer[Any], ...]:  # Any: pluggy knows no types
        return tuple(self._answer(plugin, caller, item) for plugin, caller in self._callers(hook))

    def _answer(self, plugin: str, caller: pluggy.HookCaller, item: type[object]) -> Answer[Any]:  # Any: as above
        def offers() -> tuple[object, ...]:
            return tuple(offer for answer in caller() for offer in answer)

        try:
            if plugin in self._strangers:
                collected = self._calls.call(plugin, caller.name, offers, self._calls.wait_s)
            else:
                collected = offers()
        except Exception as error:  # noqa: BLE001 - a plugin's hook may raise anything; the answer holds the error
            return Answer(plugin, error=error)
        for offer in collected:
            if not isinstance(offer, item):
                failure = PluginError(f"{caller.name} must return {item.__name__} values, not {offer!r}")
                return Answer(plugin, error=failure)
        return Answer(plugin, collected)

    def _notify_one(self, hook: str, plugin: str, caller: pluggy.HookCaller, event: Event) -> None:
        try:
            caller(event=event)
        except BaseException as error:
            if not isinstance(error, Exception) and not is_own_thread():
                raise
            with self._lock:
                self._failures[plugin] += 1
            _LOGGER.exception("listener %s of %s failed on %s", hook, self._origins[plugin], event)

    def _callers(self, hook: str) -> list[tuple[str, pluggy.HookCaller]]:
        """Return the name and the caller of each plugin that implements ``hook``, sorted by name."""
        plugins = {
            implementation.plugin_name: implementation.plugin for implementation in self._caller(hook).get_hookimpls()
        }
        return [
            (name, self._manager.subset_hook_caller(hook, [other for key, other in plugins.items() if key != name]))
            for name in sorted(plugins)
        ]

    def _caller(self, hook: str) -> pluggy.HookCaller:
        caller: pluggy.HookCaller = getattr(self._manager.hook, hook)
        return caller


def _spelling(plugin: object) -> str:
    """Return the text ``; did you mean HOOK?`` for each name of ``plugin`` that looks like a misspelt hook."""
    names = [name for name in dir(plugin) if name.startswith(_PREFIX) and name not in _SPEC_NAMES]
    matches = [difflib.get_close_matches(name, _SPEC_NAMES, n=1) for name in names]
    return "".join(f"; did you mean {match[0]}?" for match in matches if match)
