"""The root of the tree, and errors of calls, settings and plugins."""

from __future__ import annotations

from typing import ClassVar


class StorageError(Exception):
    """The root of the tree."""

    retriable: ClassVar[bool] = False
    kafka_code: ClassVar[int] = -1
    advice: ClassVar[str] = ""

    def __init__(self, reason: str, *details: object) -> None:
        super().__init__(reason, *details)  # what is called again when the error is unpickled
        self.reason = reason

    def _where(self) -> str:
        return ""

    def __str__(self) -> str:
        text = f"{self.reason}{self._where()}"
        return f"{text}: {self.advice}" if self.advice else text


class ConfigError(StorageError):
    """A setting or an argument is wrong. Fix the call or the file; never retry."""

    kafka_code = 40


class WrongTypeError(ConfigError, TypeError):
    """An argument has another type than the call takes. Fix the call; nothing was done."""


class UnknownSettingError(ConfigError):
    """No setting has this name. ``nearest`` is the closest one there is, or ""."""

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
    """The topic is there already. Open it, or choose another name."""

    kafka_code = 36


class AttachError(ConfigError):
    """A directory cannot take over a tier as it is. Give an empty one, or open it without ``attach``."""


class UnknownTopicError(ConfigError):
    """There is no such topic or partition here. Create it, or look at ``topics()``."""

    kafka_code = 3


class PolicyViolationError(ConfigError):
    """The topic's settings do not allow it. Change them first, or leave it."""

    kafka_code = 44


class PluginError(StorageError):
    """A plugin breaks the contract. Fix or block it."""


class PluginImportError(PluginError):
    """A plugin, or what it needs, cannot be imported. Install what the text names, or block the plugin."""

    def __init__(self, reason: str, plugin: str, install: str = "") -> None:
        super().__init__(reason, plugin, install)
        self.plugin, self.install = plugin, install

    def __str__(self) -> str:
        hint = f": install it with: pip install '{self.install}'" if self.install else ""
        return f"{self.reason} plugin={self.plugin}{hint}"


class PluginClashError(PluginError):
    """Two distributions offer the same name or scheme. Uninstall or block one, or choose in the settings."""


class UnknownComponentError(PluginError):
    """Nothing installed offers this name, scheme or version. Install a plugin that does."""
