"""Where settings come from: a TOML file or a call, then the environment; later ones win."""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from stratalog.config.engine import EngineConfig, Limits
from stratalog.config.keys import flat_names
from stratalog.config.topic import TopicConfig
from stratalog.errors import ConfigError, UnknownSettingError

ENVIRONMENT_PREFIX: Final = "STRATALOG_"
_SWITCHES: Final = frozenset({"STRATALOG_NO_EXTENSIONS"})  # read by the build and the kernels, not settings
_TOPIC_DEFAULTS: Final = "topic_defaults"
_LIMITS: Final = "limits."
_PLUGINS: Final = "plugins."


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that configures one engine. ``plugins`` holds the raw values of ``[plugins.NAME]`` sections."""

    engine: EngineConfig = field(default_factory=EngineConfig)
    limits: Limits = field(default_factory=Limits)
    topic_defaults: Mapping[str, object] = field(default_factory=dict)
    plugins: Mapping[str, Mapping[str, object]] = field(default_factory=dict)


def read_settings(
    config: os.PathLike[str] | str | Mapping[str, object] | None, environment: Mapping[str, str]
) -> Settings:
    """Settings from a TOML file or a mapping, overridden by ``STRATALOG_*`` of ``environment``.

    Nested tables are joined with dots, so ``[log] dirs = [...]`` and ``"log.dirs" = [...]`` are the same.
    ``STRATALOG_LOG_DIRS`` is ``log.dirs``: dots become underscores. A variable that is set and empty is a value, too.

    Args:
        config: path of a file, or a mapping of the same shape; None has no settings.
        environment: variables, by name.

    Raises:
        ConfigError: the file cannot be read, is no TOML, or holds a wrong value, or one setting twice.
        UnknownSettingError: there is an unknown name.
    """
    if config is None or isinstance(config, Mapping):
        tree, source = dict(config or {}), "config"
    else:
        tree, source = _load(Path(config)), str(config)
    defaults = tree.pop(_TOPIC_DEFAULTS, {})
    if not isinstance(defaults, Mapping):
        raise ConfigError(f"[{_TOPIC_DEFAULTS}] must be a table source={source}")
    sections = _take_sections(tree)
    values = flat_names(tree, source)
    limits = {name: values.pop(name) for name in list(values) if name.startswith(_LIMITS)}
    topic_defaults = flat_names(defaults, source)
    plain = TopicConfig()  # what plugins have is known when they are loaded
    plain.replaced(plain.known(topic_defaults), f"{source} [{_TOPIC_DEFAULTS}]")
    engine_values, limit_values = _from_environment(environment)
    return Settings(
        engine=EngineConfig.from_mapping(values, source).replaced(engine_values, "environment"),
        limits=Limits.from_mapping(limits, source).replaced(limit_values, "environment"),
        topic_defaults=topic_defaults,
        plugins=sections,
    )


def _load(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        hint = ": a setting of one topic is given by --set KEY=VALUE" if "=" in path.name else ""
        raise ConfigError(f"there is no settings file at {path}{hint}") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        hint = ': a name that goes on where another one ends is quoted, "tier.cache.dir" beside tier'
        raise ConfigError(f"{path} is no valid TOML: {error}{hint if 'overwrite' in str(error) else ''}") from error


def _take_sections(tree: dict[str, object]) -> dict[str, Mapping[str, object]]:
    """Take ``[plugins.NAME]`` out of ``tree``, as it stands: only the plugin knows which of its settings are tables."""
    sections = dict[str, Mapping[str, object]]()
    table = tree.get("plugins")
    if isinstance(table, Mapping):
        sections.update({name: value for name, value in table.items() if isinstance(value, Mapping)})
        tree["plugins"] = {name: value for name, value in table.items() if name not in sections}
    for name, value in list(tree.items()):
        if name.startswith(_PLUGINS) and isinstance(value, Mapping):
            sections[name.removeprefix(_PLUGINS)] = value
            del tree[name]
    return sections


def _from_environment(environment: Mapping[str, str]) -> tuple[dict[str, object], dict[str, object]]:
    """The engine's settings and the limits among the variables, by their names as settings."""
    engine_names = {_variable(name): name for name in EngineConfig.keys()}  # noqa: SIM118 - a classmethod, not a dict
    limit_names = {_variable(name): name for name in Limits.keys()}  # noqa: SIM118 - the same
    engine, limits = dict[str, object](), dict[str, object]()
    for variable, value in environment.items():
        if variable in engine_names:
            engine[engine_names[variable]] = value
        elif variable in limit_names:
            limits[limit_names[variable]] = value
        elif variable.startswith(ENVIRONMENT_PREFIX) and variable not in _SWITCHES:
            nearest = difflib.get_close_matches(variable, [*engine_names, *limit_names], n=1)
            raise UnknownSettingError(variable, "environment", nearest[0] if nearest else "")
    return engine, limits


def _variable(name: str) -> str:
    return ENVIRONMENT_PREFIX + name.upper().replace(".", "_")
