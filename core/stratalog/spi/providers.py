"""What plugins hand over: components on offer, and what a component is opened with."""

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
    """Everything a component may use when it opens; it keeps what it needs.

    Attributes:
        env: clock, files and chance; a component uses no other.
        limits: the engine's bounds.
        handles: the engine's descriptor pool.
        section: the component's own settings, of its ``engine_section`` type, or None.
        codecs: the engine's codecs; record formats look them up at use.
        location: stores only: the log directory's path, or the tier's URI.
        options: object stores only: options for the library below (credentials among them); never logged.
        read_only: stores only: refuse every write.
        layouts: the engine's tier layouts, for a layout that stands on another; looked up at use.
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
    """A component on offer. Building this value imports nothing heavy and opens nothing.

    Attributes:
        name: ``[a-z][a-z0-9_]*``, unique per kind, persistent: files and manifests name it.
        version: of the bytes it writes.
        open: called at most once per engine and location, at first use.
        schemes: URI schemes, stores only.
        engine_section: type of the settings under ``[plugins.NAME]``. Variables ``STRATALOG_PLUGINS_NAME_SETTING`` override
            them, and so do tier options of the same names, which ``OpenContext.options`` then lacks.
        topic_section: type of the topic settings ``NAME.*``.
        capabilities: words for people, shown by ``stratalog plugins``.
        extensions: names of the compiled modules that do its work where they could be built (``stratalog.extension``);
            ``stratalog plugins`` tells which are missing.
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
        """``name@version``, as manifests require it."""
        return f"{self.name}@{self.version}"


__all__ = ["OpenContext", "Provider", "Section", "key"]
