"""The layouts an engine can write and read, by the names that topics and manifests use."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from stratalog.errors import UnknownComponentError
from stratalog.spi.layouts import TierLayout
from stratalog.spi.providers import Provider


class LayoutTable:
    """Layouts by name, each opened at first use. Thread-safe.

    Args:
        providers: those on offer; names are unique.
        opener: opens one; called at most once a name.
    """

    def __init__(
        self, providers: Iterable[Provider[TierLayout]], opener: Callable[[Provider[TierLayout]], TierLayout]
    ) -> None:
        self._providers = {provider.name: provider for provider in providers}
        self._opener = opener
        self._opened: dict[str, TierLayout] = {}  # under _lock
        self._lock = threading.Lock()

    def label(self, name: str) -> str:
        """``name@version`` of the layout called ``name``, as it writes; UnknownComponentError if there is none."""
        return self._provider(name).label

    def by_name(self, name: str) -> TierLayout:
        """The layout called ``name``; UnknownComponentError if there is none."""
        provider = self._provider(name)
        with self._lock:
            if name not in self._opened:
                self._opened[name] = self._opener(provider)
            return self._opened[name]

    def by_label(self, label: str) -> TierLayout:
        """The layout that reads what ``label`` (``name@version``) wrote.

        Raises:
            UnknownComponentError: no layout of this name, or only an older version, is installed.
        """
        name, _, version = label.partition("@")
        provider = self._provider(name)
        if int(version) > provider.version:
            raise UnknownComponentError(f"tier layout {label} is unsupported: {provider.label} is installed; update it")
        return self.by_name(name)

    def _provider(self, name: str) -> Provider[TierLayout]:
        try:
            return self._providers[name]
        except KeyError:
            known = ", ".join(sorted(self._providers)) or "none"
            raise UnknownComponentError(f"no tier layout {name!r} is installed (there is: {known})") from None
