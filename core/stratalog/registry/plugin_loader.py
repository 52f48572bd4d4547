"""Loading of plugins: import, registration, and the call of the hooks with which plugins offer components."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from stratalog.env.deadlines import DeadlineCalls, OverdueError
from stratalog.errors import PluginError, PluginImportError
from stratalog.registry.component_kinds import KINDS
from stratalog.registry.discover import Candidate, ambiguity, bundled_hint, find_candidates, import_named, select
from stratalog.registry.host import Answer, Host
from stratalog.registry.plugins import PluginInfo, PluginStatus, Providers
from stratalog.registry.resolve import origin
from stratalog.spi.hooks import PROJECT
from stratalog.spi.providers import Provider

_LOGGER: Final = logging.getLogger("stratalog.registry")


def load_plugins(
    host: Host, plugins: Sequence[object], allow: Sequence[str], block: Sequence[str], calls: DeadlineCalls
) -> tuple[PluginInfo, ...]:
    """Register the installed plugins and ``plugins`` in ``host``, and collect their offers.

    Plugins that do not come with stratalog are imported on the threads of ``calls``, with a deadline. See
    ``Registry.load`` for the other arguments and the errors.

    Returns:
        All plugins, sorted by name, including blocked and failed ones.
    """
    installed = select(find_candidates(), allow, block)
    infos = [_info(candidate, PluginStatus.BLOCKED) for candidate in installed.blocked]
    infos += [_failure(candidate, ambiguity(candidate, installed.ambiguous)) for candidate in installed.ambiguous]
    infos += [_missing(name) for name in installed.missing]
    candidate_by_name = dict[str, Candidate | None]()
    for candidate in installed.to_import:
        try:
            plugin_origin = origin(candidate.name, candidate.distribution, candidate.version)
            is_bundled = candidate.distribution == PROJECT
            module = candidate.load() if is_bundled else _import_with_deadline(plugin_origin, candidate.load, calls)
            host.register(module, candidate.name, plugin_origin, is_bundled=is_bundled)
        except PluginError as error:
            infos.append(_failure(candidate, error))
        else:
            candidate_by_name[candidate.name] = candidate
    candidate_by_name |= dict.fromkeys(_register_passed(host, plugins, calls))
    infos += ask_all(host, candidate_by_name)
    for info in infos:
        if info.status is PluginStatus.FAILED:  # no lookup would report a failed plugin that has only listeners
            _LOGGER.warning("%s", info.absence)
    return tuple(sorted(infos, key=lambda info: (info.name, info.distribution)))


def _import_with_deadline(name: str, work: Callable[[], object], calls: DeadlineCalls) -> object:
    try:
        return calls.call(name, "import", work, calls.wait_s)
    except OverdueError as error:
        raise PluginError(f"{name}: the import {error}; update the plugin, or add its name to plugins.block") from error


def _register_passed(host: Host, plugins: Sequence[object], calls: DeadlineCalls) -> list[str]:
    names = list[str]()
    for plugin in plugins:
        label = f"plugin module {plugin!r}"
        module = (
            _import_with_deadline(label, partial(import_named, plugin), calls) if isinstance(plugin, str) else plugin
        )
        if host.is_registered(module):
            continue  # the plugin is also installed, or was passed twice
        name = _free_name(host, module)
        host.register(module, name)
        names.append(name)
    return names


def _free_name(host: Host, plugin: object) -> str:
    base = str(getattr(plugin, "__name__", "") or f"{type(plugin).__module__}.{type(plugin).__qualname__}")
    name, count = base, 1
    while name in host:
        count += 1
        name = f"{base}#{count}"
    return name


def ask_all(host: Host, candidate_by_name: Mapping[str, Candidate | None]) -> list[PluginInfo]:
    """Call the hooks with which plugins offer components, and return each plugin with its providers.

    If a hook of an installed plugin fails, the plugin is unregistered, and its result has the error and no provider. If
    a hook of a plugin that the caller passed fails, a PluginError is raised. ``candidate_by_name`` has None for such a
    plugin, and the entry point of an installed plugin.
    """
    providers_by_plugin: dict[str, dict[str, tuple[Provider[Any], ...]]] = {name: {} for name in candidate_by_name}
    errors = dict[str, PluginError]()
    for kind in KINDS:
        for answer in host.providers(kind):
            if answer.error is not None:
                errors.setdefault(answer.plugin, explain_answer(answer, kind.hook, candidate_by_name[answer.plugin]))
            elif answer.offers:
                providers_by_plugin[answer.plugin][kind.key] = answer.offers
    return [
        _make_result(host, name, candidate, providers_by_plugin[name], errors.get(name))
        for name, candidate in candidate_by_name.items()
    ]


def _make_result(
    host: Host, name: str, candidate: Candidate | None, providers: Providers, error: PluginError | None
) -> PluginInfo:
    if error is None:
        if candidate is None:
            return PluginInfo(name, "", "", PluginStatus.OK, offers=providers)
        return _info(candidate, PluginStatus.OK, offers=providers)
    if candidate is None:
        raise error
    host.unregister(name)
    return _failure(candidate, error)


def explain_answer(
    answer: Answer[Any], hook: str, candidate: Candidate | None
) -> PluginError:  # Any: every kind's answer
    """Return the PluginError for an answer with an error. It names the plugin and the hook, or a missing package."""
    error = answer.error
    if isinstance(error, PluginImportError):
        return error
    explanation: PluginError
    if isinstance(error, ImportError):
        explanation = (
            candidate.import_failure(error)
            if candidate
            else PluginImportError(str(error), answer.plugin, bundled_hint(error))
        )
    else:
        explanation = PluginError(f"{hook} of plugin {answer.plugin!r} failed: {error!r}")
    explanation.__cause__ = error
    return explanation


def _info(
    candidate: Candidate, status: PluginStatus, *, error: PluginError | None = None, offers: Providers | None = None
) -> PluginInfo:
    return PluginInfo(candidate.name, candidate.distribution, candidate.version, status, error, offers or {})


def _failure(candidate: Candidate, error: PluginError) -> PluginInfo:
    return _info(candidate, PluginStatus.FAILED, error=error)


def _missing(name: str) -> PluginInfo:
    error = PluginImportError("plugins.allow names an entry point that no installed distribution has", name)
    return PluginInfo(name, "", "", PluginStatus.FAILED, error)
