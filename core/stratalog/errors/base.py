"""The base class of all errors, and errors of calls, settings and plugins."""

from __future__ import annotations

from typing import ClassVar, Self

__all__ = [
    "AttachError", "ConfigError", "InvalidTopicError", "PluginClashError", "PluginError", "PluginImportError",
    "PolicyViolationError", "StorageError", "TopicExistsError", "UnknownComponentError", "UnknownSettingError",
    "UnknownTopicError", "WrongTypeError",
]  # fmt: skip


class StorageError(Exception):
    """Base class of all errors that stratalog raises.

    The text of an error is its reason, its location (such as a file or an offset), and its advice. ``reason`` and
    ``advice`` are these parts. ``advice`` is "" if there is no advice.
    """

    retriable: ClassVar[bool] = False
    kafka_code: ClassVar[int] = -1
    advice: str = ""

    def __init_subclass__(cls, *, kafka_code: int | None = None, retriable: bool = False) -> None:
        """Set the attributes of a class from its class statement; a subclass inherits attributes that are not set."""
        super().__init_subclass__()
        if kafka_code is not None:
            cls.kafka_code = kafka_code
        if retriable:
            cls.retriable = True

    def __init__(self, reason: str, *details: object) -> None:
        super().__init__(reason, *details)  # unpickling passes these arguments to the constructor
        self.reason = reason

    def advised(self, advice: str) -> Self:
        """Replace the advice at the end of this error's text with ``advice``, and return this error."""
        self.advice = advice
        return self

    def _where(self) -> str:
        return ""

    def __str__(self) -> str:
        text = f"{self.reason}{self._where()}"
        return f"{text}: {self.advice}" if self.advice else text


class ConfigError(StorageError, kafka_code=40):
    """A setting, a name or an argument is wrong. Correct the settings or the call; never retry."""


class WrongTypeError(ConfigError, TypeError):
    """An argument has the wrong type. Correct the call; nothing was done."""


class UnknownSettingError(ConfigError):
    """No setting has the name ``name``. ``source`` is its origin, and ``nearest`` the most similar name, or ""."""

    def __init__(self, name: str, source: str, nearest: str = "") -> None:
        super().__init__(name, source, nearest)
        self.reason = f"unknown setting {name!r}"
        self.name, self.source, self.nearest = name, source, nearest

    def _where(self) -> str:
        hint = f"; did you mean {self.nearest!r}?" if self.nearest else ""
        return f" source={self.source}{hint}"


class InvalidTopicError(ConfigError, kafka_code=17):
    """A topic name or topic id is malformed, or the topic is internal and the call is not allowed for it.

    A topic name has 1 to 249 characters of ``[a-zA-Z0-9._-]``, and is not ``.`` or ``..``.
    """


class TopicExistsError(ConfigError, kafka_code=36):
    """The topic, or a folder with the name of one of its partitions, exists already. Choose another topic name."""


class AttachError(ConfigError):
    """An attach or a restore is refused, or was interrupted and must be repeated.

    An attach is refused if a directory contains logs, a restore if it contains records of the topic. Both are refused
    if a topic is unknown or has several ids, or if a manifest is incomplete. An engine does not open a directory in
    which an attach or a restore was interrupted.
    """


class UnknownTopicError(ConfigError, kafka_code=3):
    """The topic or partition does not exist, was deleted and created again, or is not assigned to the consumer.

    ``topics()`` of an engine or a reader returns all topics that exist.
    """


class PolicyViolationError(ConfigError, kafka_code=44):
    """The topic's settings do not allow the call. Change the settings first."""


class PluginError(StorageError):
    """A plugin breaks the plugin interface (``stratalog.spi``), or its code failed. Update or block the plugin."""


class PluginImportError(PluginError):
    """A plugin, or a module that it imports, cannot be imported. ``install`` is the missing package, "" if unknown."""

    def __init__(self, reason: str, plugin: str, install: str = "") -> None:
        super().__init__(reason, plugin, install)
        self.plugin, self.install = plugin, install
        if install:
            self.advice = f"install it with: pip install '{install}'"

    def _where(self) -> str:
        return f" plugin={self.plugin}"


class PluginClashError(PluginError):
    """Several plugins offer components with one name, URI scheme, id (such as a codec id) or prefix of topic settings.

    Block all but one of these plugins. For a URI scheme, you can choose one with ``plugins.prefer`` instead.
    """


class UnknownComponentError(PluginError):
    """A setting, a URI or stored bytes need a component or version that is not installed. Install or upgrade it."""
