"""Providers: the components that plugins offer, and the context with which a component is opened."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from stratalog.config.engine_settings import Limits
from stratalog.config.keys import Section, key
from stratalog.env import Env
from stratalog.env.handles import HandlePool
from stratalog.errors import PluginError
from stratalog.spi.layouts import NO_LAYOUTS, LayoutLookup

if TYPE_CHECKING:
    from stratalog.spi.codecs import CodecTable

C = TypeVar("C")
_NAME: Final = re.compile(r"[a-z][a-z0-9_]*\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenContext:
    """The context of an engine for a component that opens. The component keeps the parts that it needs.

    Attributes:
        env: clock, files and random numbers; a component uses no others.
        limits: the engine's limits.
        handles: the engine's pool of file descriptors.
        section: the component's own settings, of its ``engine_section`` type, or None.
        codecs: the engine's codecs; record formats and layouts look them up when they use them.
        location: stores only: the log directory's path, or the tier's URI.
        options: object stores only: options for the client library, including credentials; never logged.
        read_only: stores only: refuse every write.
        layouts: the engine's tier layouts, for a layout that uses another one; looked up when used.
    """

    env: Env
    limits: Limits
    handles: HandlePool
    codecs: CodecTable
    section: Section | None = None
    location: str = ""
    options: Mapping[str, object] = field(default_factory=dict, repr=False)
    read_only: bool = False
    layouts: LayoutLookup = field(default=NO_LAYOUTS, repr=False)


@dataclass(frozen=True, kw_only=True)  # no slots: Python 3.11 cannot then make a Provider[Codec](...)
class Provider(Generic[C]):
    """An offered component. To construct a provider imports nothing heavy and opens nothing.

    Attributes:
        name: ``[a-z][a-z0-9_]*``, unique per kind, persistent: files and manifests name it.
        version: version of the bytes that the component writes.
        open: called at most once per engine and location, at first use, on a thread of its own; it must return within
            ``plugin.deadline.ms``.
        schemes: URI schemes, stores only.
        engine_section: type of the settings under ``[plugins.NAME]``. Environment variables
            ``STRATALOG_PLUGINS_NAME_SETTING`` override these settings. Tier options with the same names override them
            too, and are then not in ``OpenContext.options``.
        topic_section: type of the topic settings ``NAME.*``.
        capabilities: words for people, shown by ``stratalog plugins``.
        extensions: names of the component's compiled modules, which are used if they could be built
            (``stratalog.extension``); ``stratalog plugins`` shows the missing ones.
    """

    name: str
    open: Callable[[OpenContext], C]
    version: int = 1
    schemes: frozenset[str] = frozenset()
    engine_section: type[Section] | None = None
    topic_section: type[Section] | None = None
    capabilities: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not _NAME.match(self.name):
            raise PluginError(f"provider name {self.name!r} is not of the form [a-z][a-z0-9_]*")
        if self.version < 1:
            raise PluginError(f"provider {self.name!r} has version {self.version}: versions start at 1")

    @property
    def label(self) -> str:
        """The text ``name@version``, as manifests name the component."""
        return f"{self.name}@{self.version}"


__all__ = ["OpenContext", "Provider", "Section", "key"]
