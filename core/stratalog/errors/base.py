"""The base class of all errors, and errors of calls, settings and plugins."""

from __future__ import annotations

from typing import ClassVar, Self


class StorageError(Exception):
    """Base class of all errors that stratalog raises."""

    retriable: ClassVar[bool] = False
    kafka_code: ClassVar[int] = -1
    advice: str = ""

    def __init__(self, reason: str, *details: object) -> None:
        super().__init__(reason, *details)  # unpickling passes these arguments to the constructor again
        self.reason = reason

    def advised(self, advice: str) -> Self:
        """Return this error with ``advice`` for its cause instead of the advice of its class."""
        self.advice = advice
        return self

    def _where(self) -> str:
        return ""

    def __str__(self) -> str:
        text = f"{self.reason}{self._where()}"
        return f"{text}: {self.advice}" if self.advice else text


class ConfigError(StorageError):
    """A setting or an argument is wrong. Fix the call or the file; never retry."""

    kafka_code = 40


class WrongTypeError(ConfigError, TypeError):
    """An argument has the wrong type. Fix the call; nothing was done."""


class UnknownSettingError(ConfigError):
    """No setting has this name. ``nearest`` is the most similar name of a setting, or ""."""

    def __init__(self, name: str, source: str, nearest: str = "") -> None:
        super().__init__(name, source, nearest)
        self.reason = f"unknown setting {name!r}"
        self.name, self.source, self.nearest = name, source, nearest

    def _where(self) -> str:
        hint = f"; did you mean {self.nearest!r}?" if self.nearest else ""
        return f" source={self.source}{hint}"


class InvalidTopicError(ConfigError):
    """A topic name breaks Kafka's rules (1 to 249 of ``[a-zA-Z0-9._-]``, not ``.`` or ``..``). Choose another."""

    kafka_code = 17


class TopicExistsError(ConfigError):
    """The topic exists already. Open it, or choose another name."""

    kafka_code = 36


class AttachError(ConfigError):
    """A directory with its present contents cannot take over a tier. Use an empty one, or open without ``attach``."""


class UnknownTopicError(ConfigError):
    """The topic or partition does not exist here. Create it, or see ``topics()`` for those that exist."""

    kafka_code = 3


class PolicyViolationError(ConfigError):
    """The topic's settings do not allow the call. Change the settings first."""

    kafka_code = 44


class PluginError(StorageError):
    """A plugin breaks the plugin contract. Fix or block the plugin."""


class PluginImportError(PluginError):
    """A plugin or one of its dependencies cannot be imported. Install the package in the text, or block the plugin."""

    def __init__(self, reason: str, plugin: str, install: str = "") -> None:
        super().__init__(reason, plugin, install)
        self.plugin, self.install = plugin, install

    def __str__(self) -> str:
        hint = f": install it with: pip install '{self.install}'" if self.install else ""
        return f"{self.reason} plugin={self.plugin}{hint}"


class PluginClashError(PluginError):
    """Two plugins offer the same name, scheme or number. Uninstall or block one, or choose one in the settings."""


class UnknownComponentError(PluginError):
    """No installed plugin offers a component of this name, scheme, number or version. Install a plugin that does."""
