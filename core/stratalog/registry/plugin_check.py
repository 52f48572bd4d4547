"""``stratalog check-plugin``: a check of a plugin's structure against the plugin interface ``stratalog.spi``.

The check does not test the behaviour of components. The classes of ``stratalog.testing.contracts`` test it.
"""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from stratalog.config.engine_settings import Limits
from stratalog.config.keys import Section
from stratalog.env import Env
from stratalog.env.deadlines import DeadlineCalls
from stratalog.env.handles import HandlePool
from stratalog.errors import ConfigError, PluginError, PluginImportError, UnknownComponentError
from stratalog.model.names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    DIGEST_SUFFIX,
    EXTRA_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
)
from stratalog.model.records import Fields
from stratalog.registry import component_kinds
from stratalog.registry.component_kinds import ComponentKind
from stratalog.registry.discover import Candidate, find_candidates, import_named
from stratalog.registry.host import Host
from stratalog.registry.plugin_loader import ask_all
from stratalog.registry.plugins import PluginInfo, Providers
from stratalog.registry.result_types import members_of
from stratalog.spi.codecs import Codec, CodecTable
from stratalog.spi.extra import ExtraIndex
from stratalog.spi.formats import RecordFormat
from stratalog.spi.indexes import IndexFormat, IndexRole
from stratalog.spi.providers import OpenContext, Provider

HEAVY_MODULES: Final = frozenset(
    {"boto3", "botocore", "aiobotocore", "click", "cryptography", "fsspec", "grpc", "numpy", "pandas", "polars"}
    | {"pyarrow", "pyspark", "requests", "rich", "s3fs", "torch"}
)
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*\Z")
_SUFFIX: Final = re.compile(r"\.[a-z]+\Z")
_TAKEN_SUFFIXES: Final = frozenset(
    {LOG_SUFFIX, SNAPSHOT_SUFFIX, DIGEST_SUFFIX, EXTRA_SUFFIX, DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX}
)
_COMMAND: Final = re.compile(r"[a-z][a-z0-9-]*\Z")


class Severity(StrEnum):
    """The severity of a finding. ERROR: the plugin breaks the plugin interface. WARNING: a check was not possible."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class PluginFinding:
    """One problem of a plugin.

    Attributes:
        where: the plugin or one of its components, such as ``codec zstd``.
    """

    severity: Severity
    where: str
    text: str


def check_plugin(plugin: object) -> list[PluginFinding]:
    """Check one plugin against the plugin interface, and return its problems. Settings have no effect.

    Stores are not opened, because opening a store needs a location. Call this function in a new process: the check
    finds an import of a heavy module (``HEAVY_MODULES``) only if the process has not imported this module before.

    Args:
        plugin: the name of an entry point, the name of a module, the path of a Python file, or a module or object with
            hooks.

    Returns:
        The problems, errors first; empty if there are none.

    Raises:
        UnknownComponentError: there is no entry point, module or file with this name.
    """
    candidate = _candidate(plugin) if isinstance(plugin, str) else None
    name = _name_of(plugin)
    before, host = set(sys.modules), Host(DeadlineCalls())
    try:
        info = _register(host, plugin, candidate)
    except PluginError as error:
        return [PluginFinding(Severity.ERROR, f"plugin {name}", str(error))]
    if info.error is not None:
        return [PluginFinding(Severity.ERROR, f"plugin {name}", str(info.error))]
    findings = [
        PluginFinding(
            Severity.ERROR,
            f"plugin {name}",
            f"importing it imports {module}: import this module when a component opens",
        )
        for module in sorted(HEAVY_MODULES & (set(sys.modules) - before))
    ]
    findings += _check_offers(info.offers)
    findings += _check_commands(host)
    return sorted(findings, key=lambda finding: (finding.severity, finding.where))


def offers_of(plugin: object) -> Providers:
    """Return the providers of a plugin by kind (``codecs``, ...). See ``check_plugin`` for ``plugin``.

    Raises:
        PluginError: the plugin cannot be imported, or breaks the plugin interface.
        UnknownComponentError: there is no entry point, module or file with this name.
    """
    info = _register(Host(DeadlineCalls()), plugin, _candidate(plugin) if isinstance(plugin, str) else None)
    if info.error is not None:
        raise info.error
    return info.offers


def _name_of(plugin: object) -> str:
    return plugin if isinstance(plugin, str) else str(getattr(plugin, "__name__", type(plugin).__qualname__))


def _register(host: Host, plugin: object, candidate: Candidate | None) -> PluginInfo:
    name = _name_of(plugin)
    host.register(candidate.load() if candidate else _load(plugin), name)
    return ask_all(host, {name: candidate})[0]


def _candidate(name: str) -> Candidate | None:
    """Return the entry point with this name; None if ``name`` is the path of a file or the name of a module.

    Raise UnknownComponentError if there is no entry point, module or file with this name.
    """
    installed = find_candidates()
    for candidate in installed:
        if candidate.name == name:
            return candidate
    if Path(name).is_file() or _is_module(name):
        return None
    names = ", ".join(sorted({candidate.name for candidate in installed})) or "none"
    if Path(name).is_dir():
        raise UnknownComponentError(
            f"{name} is a folder: name the Python file of the plugin, or install the folder by pip and name its entry "
            f"point; installed entry points: {names}"
        )
    raise UnknownComponentError(
        f"no installed distribution has the entry point {name!r}, and there is no such module or file; installed entry "
        f"points: {names}"
    )


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _load(plugin: object) -> object:
    """Return the module with this name or path; ``plugin`` itself if it is not a string.

    Raise PluginError if the file or module cannot be imported.
    """
    if not isinstance(plugin, str):
        return plugin
    if not Path(plugin).is_file():
        return import_named(plugin)
    spec = importlib.util.spec_from_file_location(Path(plugin).stem, plugin)
    if spec is None or spec.loader is None:
        raise PluginError(f"{plugin} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # a plugin may raise anything
        raise PluginError(f"importing {plugin} raised {error!r}") from error
    return module


def _check_offers(offers: Providers) -> Iterator[PluginFinding]:
    by_key = {kind.key: kind for kind in component_kinds.KINDS}
    for key, providers in offers.items():
        kind = by_key[key]
        uses = Counter(provider.name for provider in providers)
        for provider in providers:
            where = f"{kind.title} {provider.name}"
            problems = [*_check_provider(kind, provider)]
            if uses[provider.name] > 1:
                problems.append("the plugin offers this name twice")
            yield from (PluginFinding(Severity.ERROR, where, text) for text in problems)
            if not problems and not kind.has_schemes:
                yield from _check_opening(kind, provider, where)


def _check_commands(host: Host) -> Iterator[PluginFinding]:
    for answer in host.commands():
        if answer.error is not None:
            yield PluginFinding(Severity.ERROR, f"plugin {answer.plugin}", f"its commands hook raised {answer.error!r}")
        for command in answer.offers:
            if not _COMMAND.match(command.name):
                yield PluginFinding(
                    Severity.ERROR, f"command {command.name}", "its name is not of the form [a-z][a-z0-9-]*"
                )
            if not command.help:
                yield PluginFinding(Severity.ERROR, f"command {command.name}", "it has no help text")


def _check_provider(kind: ComponentKind, provider: Provider[Any]) -> Iterator[str]:  # Any: providers of every kind
    if kind.has_schemes and not provider.schemes:
        yield "it serves no URI scheme, so no URI selects it"
    if provider.schemes and not kind.has_schemes:
        yield "only object stores have schemes"
    for scheme in sorted(provider.schemes):
        if not _SCHEME.match(scheme):
            yield f"scheme {scheme!r} is not of the form [a-z][a-z0-9+.-]*"
    try:
        inspect.signature(provider.open).bind(None)
    except TypeError as error:
        yield f"open must have one argument, the context: {error}"
    yield from _check_section(provider.engine_section)
    yield from _check_section(provider.topic_section, prefix=f"{provider.name}.")


def _check_section(section: object, prefix: str = "") -> Iterator[str]:
    if section is None:
        return
    if not (isinstance(section, type) and issubclass(section, Section)):
        yield f"{section!r} is not a subclass of Section"
        return
    try:
        settings = section.keys()
        section.from_mapping(section().to_mapping(), "defaults")
    except (ConfigError, NameError, TypeError) as error:
        yield f"the defaults of {section.__name__} are refused: {error}"
        return
    for name, setting in settings.items():
        if not name.startswith(prefix):
            yield f"topic setting {name!r} must begin with {prefix!r}"
        if not setting.doc:
            yield f"setting {name!r} has no doc"


def _check_opening(
    kind: ComponentKind, provider: Provider[Any], where: str
) -> Iterator[PluginFinding]:  # Any: every kind
    env, limits = Env(), Limits()
    handles = HandlePool(env.files, limits.open_files)
    section = provider.engine_section() if provider.engine_section else None
    context = OpenContext(env=env, limits=limits, handles=handles, codecs=CodecTable(), section=section)
    try:
        component = provider.open(context)
    except PluginImportError as error:
        yield PluginFinding(Severity.WARNING, where, f"it cannot be opened here: {error}")
        return
    except Exception as error:  # noqa: BLE001 - a plugin may raise anything, and each error is a finding
        yield PluginFinding(Severity.ERROR, where, f"opening it with default settings raised {error!r}")
        return
    finally:
        handles.close()
    if not isinstance(component, kind.component):
        problem = f"open returned {type(component).__qualname__}, which is not a {kind.component.__name__}"
        yield PluginFinding(Severity.ERROR, where, problem)
        return
    problems = [*_attribute_problems(component), *_signature_problems(component, kind.component)]
    yield from (PluginFinding(Severity.ERROR, where, text) for text in problems)


def _attribute_problems(component: object) -> Iterator[str]:
    """Yield a sentence for each wrong attribute of a component."""
    if isinstance(component, Codec):
        if getattr(component, "id", None) not in range(1, 8):
            yield "id must be 1 to 7: the attributes have three bits, and 0 means no codec"
        if not isinstance(getattr(component, "levels", ""), range | None):
            yield "levels must be a range or None"
    elif isinstance(component, RecordFormat):
        if getattr(component, "magic", None) not in range(128):
            yield "magic must be 0 to 127"
    elif isinstance(component, ExtraIndex):
        if not isinstance(getattr(component, "fields", None), Fields):
            yield "fields must be a Fields value: the record fields that a builder reads"
    elif isinstance(component, IndexFormat):
        yield from _index_problems(component)


def _index_problems(index: IndexFormat[Any]) -> Iterator[str]:  # Any: entries of every kind
    role = getattr(index, "role", None)
    if not isinstance(role, IndexRole):
        yield "role must be an IndexRole"
    elif role is IndexRole.EXTRA:
        yield "an index of role extra must be an ExtraIndex, which the hook stratalog_extra_indexes returns"
    suffix = str(getattr(index, "suffix", ""))
    if not _SUFFIX.match(suffix) or suffix in _TAKEN_SUFFIXES:
        yield f"suffix must be a dot and lower-case letters, and none of {', '.join(sorted(_TAKEN_SUFFIXES))}"
    if getattr(index, "entry_bytes", None) not in range(1, 1 << 16):
        yield "entry_bytes must be 1 to 65535"


def _signature_problems(component: object, part: type[object]) -> Iterator[str]:
    """Yield a sentence for each method of ``component`` that does not accept the arguments that ``part`` declares.

    ``part`` is the class in ``stratalog.spi``. Also yield a sentence for each coroutine function, and for each method
    that cannot be called.
    """
    for name, declared in members_of(part):
        attribute = inspect.getattr_static(type(component), name, None)
        if isinstance(declared, property) or attribute is None:
            continue
        method = getattr(component, name)
        if inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method):
            yield f"{name} is an async def, but the contract has no asynchronous methods: use def"
        elif callable(method):
            yield from _check_arguments(name, method, declared)
        else:
            yield f"{name} must be a method"


def _check_arguments(name: str, method: object, declared: object) -> Iterator[str]:
    assert callable(method)
    assert callable(declared)
    parameters = list(inspect.signature(declared).parameters.values())[1:]  # without self
    positional = [parameter.name for parameter in parameters if parameter.kind is not parameter.KEYWORD_ONLY]
    keywords = {parameter.name: None for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}
    try:
        inspect.signature(method).bind(*positional, **keywords)
    except TypeError as error:
        yield f"{name}{inspect.signature(method)} must accept {name}{_without_self(declared)}: {error}"


def _without_self(declared: object) -> str:
    assert callable(declared)
    signature = inspect.signature(declared)
    parameters = [parameter.replace(annotation=parameter.empty) for parameter in signature.parameters.values()][1:]
    return str(signature.replace(parameters=parameters, return_annotation=signature.empty))
