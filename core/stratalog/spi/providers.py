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
from stratalog.errors import PluginError, UnknownComponentError
from stratalog.spi.layouts import LayoutLookup, TierLayout

if TYPE_CHECKING:
    from stratalog.spi.codecs import CodecTable

C = TypeVar("C")
_NAME: Final = re.compile(r"[a-z][a-z0-9_]*\Z")


class _LayoutsByName:
    def __init__(self, layouts: Mapping[str, TierLayout]) -> None:
        self._layouts = layouts

    def label(self, name: str) -> str:
        self.by_name(name)
        return f"{name}@1"

    def by_name(self, name: str) -> TierLayout:
        if name not in self._layouts:
            raise UnknownComponentError(f"no tier layout {name!r} is installed")
        return self._layouts[name]

    def by_label(self, label: str) -> TierLayout:
        name, _, version = label.rpartition("@")
        if name not in self._layouts or version != "1":
            raise UnknownComponentError(f"{label} is required to read this, and is not installed here")
        return self._layouts[name]


def layouts_by_name(layouts: Mapping[str, TierLayout]) -> LayoutLookup:
    """Return a lookup of these layouts, all of version 1, for a component that is opened without an engine."""
    return _LayoutsByName(layouts)


NO_LAYOUTS: Final = layouts_by_name({})


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenContext:
    """The arguments with which an engine or a reader opens a component. The component keeps the ones that it needs.

    Attributes:
        env: clock, files and random numbers. A component must use only these.
        limits: the engine's limits.
        handles: the engine's pool of file descriptors.
        codecs: the engine's codecs. A record format or layout must look up a codec at each use, not when it is opened.
            A codec itself gets an empty table.
        section: the component's own settings, of the type ``Provider.engine_section``; None if the provider has none.
        location: stores only: the path of the log directory (its URI if the scheme is not ``file``), or the tier's URI.
        options: object stores only: options for the client library, including credentials; never log them.
        read_only: stores only: True if the store must refuse every write.
        layouts: the engine's tier layouts, for a layout that uses another one. Look the other layout up when it is
            used, not when the component is opened.
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


@dataclass(frozen=True, kw_only=True)  # with slots, Provider[Codec](...) fails in Python 3.11
class Provider(Generic[C]):
    """The description of a component that a plugin offers, and the function that opens the component.

    The construction of a provider must import no heavy module and open nothing.

    Attributes:
        name: ``[a-z][a-z0-9_]*``, unique per kind. Files and manifests contain the name, so it must not change.
        version: version of the bytes that the component writes, 1 or higher.
        open: opens the component: a service or a store of the engine when the engine opens, and any other component at
            its first use. After it has returned, it is not called again for the same engine and location. After an
            error, the next use calls it again, except for codecs and record formats: they stay unusable until the
            engine is opened again. It is called on a separate thread, and must return within ``plugin.deadline.ms``.
            For a component that comes with stratalog, it is called on the thread of the first use, without a deadline.
        schemes: URI schemes in lower case, stores only.
        engine_section: type of the settings under ``[plugins.NAME]``. Environment variables
            ``STRATALOG_PLUGINS_NAME_SETTING`` override these settings. For an object store, tier options with the names
            of settings override both, and are not in ``OpenContext.options``.
        topic_section: type of the topic settings ``NAME.*``.
        capabilities: short descriptions for people, which ``stratalog plugins`` shows.
        extensions: names of the component's compiled modules, which are used if they could be built
            (``stratalog.extension``); ``stratalog plugins`` shows the missing ones.

    Raises:
        PluginError: ``name`` has another form, or ``version`` is below 1.
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
        """The text ``name@version``, by which manifests refer to the component."""
        return f"{self.name}@{self.version}"


__all__ = ["OpenContext", "Provider", "Section", "key"]
