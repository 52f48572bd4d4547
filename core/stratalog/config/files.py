"""Where settings come from: a TOML file, the environment, a call; later ones win."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from stratalog.config.engine import EngineConfig, Limits
from stratalog.config.topic import TopicConfig
from stratalog.errors import ConfigError, UnknownSettingError

ENVIRONMENT_PREFIX: Final = "STRATALOG_"
_SWITCHES: Final = frozenset({"STRATALOG_NO_EXTENSIONS"})  # read by the build and the kernels, not settings
_TABLES: Final = ("topic_defaults", "plugins", "limits")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that configures one engine. ``plugins`` holds the raw values of ``[plugins.NAME]`` sections."""

    engine: EngineConfig = field(default_factory=EngineConfig)
    limits: Limits = field(default_factory=Limits)
    topic_defaults: Mapping[str, object] = field(default_factory=dict)
    plugins: Mapping[str, Mapping[str, object]] = field(default_factory=dict)


def read_settings(
    origin: str | os.PathLike[str] | Mapping[str, object] | None, environment: Mapping[str, str]
) -> Settings:
    """Settings of a file, or of its contents as a mapping, overridden by ``STRATALOG_*`` of ``environment``.

    ``STRATALOG_LOG_DIRS`` is ``log.dirs``: dots become underscores. Nested TOML tables are joined with dots, so
    ``[log] dirs = [...]`` and ``"log.dirs" = [...]`` are the same.

    Raises:
        ConfigError: the file is missing, is no TOML, or holds a wrong value.
        UnknownSettingError: it holds an unknown name.
    """
    if origin is None or isinstance(origin, Mapping):
        tree, source = dict(origin or {}), "config"
    else:
        tree, source = _load(Path(origin)), os.fspath(origin)
    tables: dict[str, Mapping[str, object]] = {}
    for name in _TABLES:
        table = tree.pop(name, {})
        if not isinstance(table, Mapping):
            raise ConfigError(f"[{name}] must be a table source={source}")
        tables[name] = table
    defaults = _flat(tables["topic_defaults"])
    TopicConfig.from_mapping(defaults, f"{source} [topic_defaults]")
    engine_values, plugin_sections = _flat(tree), dict[str, Mapping[str, object]]()
    for name, section in tables["plugins"].items():
        if isinstance(section, Mapping):
            plugin_sections[name] = _flat(section)
        else:
            engine_values[f"plugins.{name}"] = section
    limit_values = {f"limits.{name}": value for name, value in _flat(tables["limits"]).items()}
    engine = EngineConfig.from_mapping(engine_values, source)
    limits = Limits.from_mapping(limit_values, source)
    engine, limits = _from_environment(engine, limits, environment)
    return Settings(engine=engine, limits=limits, topic_defaults=defaults, plugins=plugin_sections)


def _load(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"there is no settings file at {path}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no valid TOML: {error}") from error


def _flat(table: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    result: dict[str, object] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            result.update(_flat(value, f"{prefix}{name}."))
        else:
            result[prefix + name] = value
    return result


def _from_environment(
    engine: EngineConfig, limits: Limits, environment: Mapping[str, str]
) -> tuple[EngineConfig, Limits]:
    engine_names = {_variable(name): name for name in EngineConfig.keys()}  # noqa: SIM118 - a classmethod, not a dict
    limit_names = {_variable(name): name for name in Limits.keys()}  # noqa: SIM118 - the same
    engine_values, limit_values = dict[str, object](), dict[str, object]()
    for variable, value in environment.items():
        if variable in engine_names:
            engine_values[engine_names[variable]] = value
        elif variable in limit_names:
            limit_values[limit_names[variable]] = value
        elif variable.startswith(ENVIRONMENT_PREFIX) and variable not in _SWITCHES:
            raise UnknownSettingError(variable, "environment")
    return engine.replaced(engine_values, "environment"), limits.replaced(limit_values, "environment")


def _variable(name: str) -> str:
    return ENVIRONMENT_PREFIX + name.upper().replace(".", "_")
