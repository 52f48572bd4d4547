"""The layouts an engine can write and read, each opened at first use."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from stratalog.errors import ConfigError, PluginError
from stratalog.registry.resolve import Catalogue
from stratalog.spi.layouts import TierLayout
from stratalog.spi.providers import Provider


class LayoutTable:
    """Layouts by the names that topics use and the labels that manifests hold. Thread-safe.

    Names and labels that nothing installed offers raise UnknownComponentError, as the catalogue does.

    Args:
        catalogue: those on offer.
        opener: opens one; called at most once a name.
    """

    def __init__(self, catalogue: Catalogue[TierLayout], opener: Callable[[Provider[TierLayout]], TierLayout]) -> None:
        self._catalogue, self._opener = catalogue, opener
        self._opened: dict[str, TierLayout] = {}  # under _lock
        self._labelled: dict[str, TierLayout] = {}  # by label, those asked for so far: each read asks
        self._lock = threading.Lock()

    def label(self, name: str) -> str:
        """``name@version`` of the layout called ``name``, as it writes."""
        return self._catalogue.by_name(name).label

    def by_name(self, name: str) -> TierLayout:
        """The layout called ``name``."""
        return self._open(self._catalogue.by_name(name))

    def by_label(self, label: str) -> TierLayout:
        """The layout that reads what ``label`` (``name@version``) wrote."""
        found = self._labelled.get(label)
        if found is None:
            found = self._labelled[label] = self._open(self._catalogue.by_label(label))
        return found

    def all(self) -> tuple[TierLayout, ...]:
        """Every layout that can be opened with the settings there are: one may lack its keys."""
        found = list[TierLayout]()
        for offer in self._catalogue:
            with contextlib.suppress(ConfigError, PluginError):
                found.append(self._open(offer.provider))
        return tuple(found)

    def _open(self, provider: Provider[TierLayout]) -> TierLayout:
        with self._lock:
            if provider.name not in self._opened:
                self._opened[provider.name] = self._opener(provider)
            return self._opened[provider.name]
