"""Settings from a TOML file or a mapping, overridden by environment variables."""

from __future__ import annotations

import difflib
import functools
import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from stratalog.config.engine_settings import EngineConfig, Limits
from stratalog.config.keys import flat_names
from stratalog.config.topic import TopicConfig, topic_key_of
from stratalog.errors import ConfigError, UnknownSettingError

ENVIRONMENT_PREFIX: Final = "STRATALOG_"
CONFIG_VARIABLE: Final = "STRATALOG_CONFIG"  # path of the settings file if the caller gives none
_SWITCHES: Final = frozenset({"STRATALOG_NO_EXTENSIONS", CONFIG_VARIABLE})  # variables that are not settings
_TOPIC_DEFAULTS: Final = "topic_defaults"
_LIMITS: Final = "limits."
_PLUGINS: Final = "plugins."
_PLUGIN_VARIABLES: Final = "STRATALOG_PLUGINS_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of one engine.

    ``plugins`` holds the unchecked values of the ``[plugins.NAME]`` sections, by ``NAME``. ``plugin_variables`` holds
    the environment variables that override these values, by variable name. Both are checked when the plugins are
    loaded, because only the plugins know their settings.
    """

    engine: EngineConfig = field(default_factory=EngineConfig)
    limits: Limits = field(default_factory=Limits)
    topic_defaults: Mapping[str, object] = field(default_factory=dict)
    plugins: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    plugin_variables: Mapping[str, str] = field(default_factory=dict)


def read_settings(
    config: os.PathLike[str] | str | Mapping[str, object] | None, environment: Mapping[str, str]
) -> Settings:
    """Return the settings of a TOML file or a mapping, overridden by the ``STRATALOG_*`` variables of ``environment``.

    Nested tables are joined with dots: ``[log] dirs = [...]`` and ``"log.dirs" = [...]`` both set ``log.dirs``. In the
    name of a variable, dots become underscores: ``STRATALOG_LOG_DIRS`` sets ``log.dirs``, and
    ``STRATALOG_PLUGINS_S3_ALLOW_HTTP`` sets ``allow_http`` of ``[plugins.s3]``. An empty variable overrides a setting,
    too.

    Args:
        config: path of a file, or a mapping with the contents of such a file. None means the file that
            ``STRATALOG_CONFIG`` names. If that variable is empty or not set, no file is read.
        environment: environment variables by name.

    Raises:
        ConfigError: the file cannot be read or is not valid TOML, a value is wrong, a setting occurs twice, or two
            settings contradict each other.
        UnknownSettingError: a name is not the name of a setting. Names of plugin settings are not checked here.
    """
    if config is None:
        config = environment.get(CONFIG_VARIABLE) or None
    if config is None or isinstance(config, Mapping):
        tree, source = dict(config or {}), "config"
    else:
        tree, source = load_settings(config), str(config)
    defaults = tree.pop(_TOPIC_DEFAULTS, {})
    if not isinstance(defaults, Mapping):
        raise ConfigError(f"[{_TOPIC_DEFAULTS}] must be a table source={source}")
    sections = _take_sections(tree)
    values = flat_names(tree, source)
    engine_keys, topic_keys = EngineConfig.keys(), TopicConfig.keys()
    for name in values:
        topic_key = name if name in topic_keys else topic_key_of(name)
        if topic_key and name not in engine_keys:
            advice = f"write the topic setting {topic_key!r} in [{_TOPIC_DEFAULTS}]"
            raise UnknownSettingError(name, source).advised(advice)
    limits = {name: values.pop(name) for name in list(values) if name.startswith(_LIMITS)}
    topic_defaults = flat_names(defaults, source)
    core_config = TopicConfig()  # the settings of plugins are checked when the plugins are loaded
    core_config.replaced(core_config.known(topic_defaults), f"{source} [{_TOPIC_DEFAULTS}]")
    engine_values, limit_values, plugin_variables = _from_environment(environment)
    return Settings(
        engine=EngineConfig.from_mapping(values, source).replaced(engine_values, "environment"),
        limits=Limits.from_mapping(limits, source).replaced(limit_values, "environment"),
        topic_defaults=topic_defaults,
        plugins=sections,
        plugin_variables=plugin_variables,
    )


def plugin_values(settings: Settings, names_by_section: Mapping[str, Iterable[str]]) -> dict[str, dict[str, str]]:
    """Return the plugin settings that environment variables set: values by section name and setting name.

    A section without such variables is not in the result.

    Args:
        settings: settings with the variables of the environment.
        names_by_section: the names of the settings of each ``[plugins.NAME]`` section, by ``NAME``.

    Raises:
        UnknownSettingError: a variable belongs to no setting.
    """
    places = {
        _variable(f"{_PLUGINS}{section}.{name}"): (section, name)
        for section in names_by_section
        for name in names_by_section[section]
    }
    values = dict[str, dict[str, str]]()
    for variable, value in settings.plugin_variables.items():
        if variable not in places:
            engine = (_variable(name) for name in EngineConfig.keys())  # noqa: SIM118 - a classmethod, not a dict
            raise _unknown_variable(variable, (*engine, *places))
        section, name = places[variable]
        values.setdefault(section, {})[name] = value
    return values


def variable_values(settings: Settings, section: str, names: Iterable[str]) -> dict[str, str]:
    """Return the values of the environment variables that set ``names`` in ``[plugins.SECTION]``, by setting name."""
    places = {name: _variable(f"{_PLUGINS}{section}.{name}") for name in names}
    variables = settings.plugin_variables
    return {name: variables[variable] for name, variable in places.items() if variable in variables}


def load_settings(file: os.PathLike[str] | str) -> dict[str, object]:
    """Return the contents of a TOML settings file, as a mapping for ``read_settings``. The mapping can be pickled.

    Raises:
        ConfigError: the file does not exist, cannot be read, or is not valid TOML.
    """
    path = Path(file)
    try:
        if path.exists() and not path.is_file():  # opening a FIFO would block until a writer opens it
            raise ConfigError(f"{path} is not a regular file: give the path of a settings file")
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))  # editors on Windows write a byte order mark
    except FileNotFoundError:
        hint = ": use --set KEY=VALUE for a setting of one topic" if "=" in path.name else ""
        raise ConfigError(f"there is no settings file at {path}{hint}") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        hint = ""
        if "overwrite" in str(error):
            hint = ': quote a name that extends another one, such as "tier.cache.dir" beside tier'
        elif path.suffix == ".properties":
            hint = ': write the settings as in log.dirs = ["/data/kafka"], not as in the properties file of a broker'
        raise ConfigError(f"{path} is not valid TOML: {error}{hint}") from error


def _take_sections(tree: dict[str, object]) -> dict[str, Mapping[str, object]]:
    """Remove the ``[plugins.NAME]`` sections from ``tree``, and return them by ``NAME``.

    Tables in a section are not flattened, because only the plugin knows which of its settings are tables.
    """
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


def _from_environment(environment: Mapping[str, str]) -> tuple[dict[str, object], dict[str, object], dict[str, str]]:
    """Return engine settings and limits by setting name, and plugin settings by variable name."""
    engine_names, limit_names = _names_by_variable()
    engine, limits, plugins = dict[str, object](), dict[str, object](), dict[str, str]()
    for variable, value in environment.items():
        if variable in engine_names:
            engine[engine_names[variable]] = value
        elif variable in limit_names:
            limits[limit_names[variable]] = value
        elif variable.startswith(_PLUGIN_VARIABLES):
            plugins[variable] = value
        elif variable.startswith(ENVIRONMENT_PREFIX) and variable not in _SWITCHES:
            raise _unknown_variable(variable, (*engine_names, *limit_names, CONFIG_VARIABLE))
    return engine, limits, plugins


@functools.cache
def _names_by_variable() -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Return the names of engine settings and the names of limits, by environment variable."""
    return (
        {_variable(name): name for name in EngineConfig.keys()},  # noqa: SIM118 - a classmethod, not a dict
        {_variable(name): name for name in Limits.keys()},  # noqa: SIM118 - a classmethod, not a dict
    )


def _unknown_variable(variable: str, known_variables: Iterable[str]) -> UnknownSettingError:
    nearest = difflib.get_close_matches(variable, list(known_variables), n=1)
    return UnknownSettingError(variable, "environment", nearest[0] if nearest else "")


def _variable(name: str) -> str:
    return ENVIRONMENT_PREFIX + name.upper().replace(".", "_")
