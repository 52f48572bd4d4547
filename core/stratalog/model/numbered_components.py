"""Components that are looked up by a number in stored bytes: codecs by id, record formats by magic.

The number of a component is known only after the component is opened. Therefore all components of a kind are opened
when the first one is needed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from stratalog.errors import PluginClashError, PluginError, StorageError

C = TypeVar("C")
_LOGGER: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Opened(Generic[C]):
    """The components of one kind, such as codecs.

    Attributes:
        by_name: components that can be used, by name: they could be opened, and no other component has their number.
        by_number: the components of ``by_name``, by number.
        failures: the error of each other component, by the component's name.
        clashes: the error for each number that several components have.
    """

    by_name: Mapping[str, C] = field(default_factory=dict)
    by_number: Mapping[int, C] = field(default_factory=dict)
    failures: Mapping[str, StorageError] = field(default_factory=dict)
    clashes: Mapping[int, StorageError] = field(default_factory=dict)

    def check(self, name: str) -> None:
        """Raise the error of the component ``name`` if the component failed to open or has a wrong number."""
        if name in self.failures:
            raise self.failures[name].with_traceback(None)

    def absence(self) -> str:
        """Return the texts of all ``failures``, to append to an error about a missing component; "" if none failed."""
        return "".join(f"; {failure}" for failure in self.failures.values())


class NumberedComponents(Generic[C]):
    """Components of one kind, such as codecs. All are opened when the first one is needed. Thread-safe.

    If a component cannot be opened, has a number that is not allowed, or has the number of another component, its use
    raises an error. All other components work.

    Args:
        title: name of the kind, for error texts.
        attribute: the attribute of a component that holds its number.
        numbers: the allowed numbers.
        openers: openers by name. An opener returns the same component or raises the same error each time.
    """

    def __init__(
        self, title: str, attribute: str, numbers: range, openers: Mapping[str, Callable[[], C]] | None = None
    ) -> None:
        self._title, self._attribute, self._numbers = title, attribute, numbers
        self._openers = dict(openers or {})
        self._opened: Opened[C] | None = None

    def open_all(self) -> Opened[C]:
        """Return the components; open them at the first call. Errors of components are in ``Opened.failures``."""
        components = self._opened
        if components is None:
            # If two threads both open, no harm is done. A lock here could deadlock with the lock of the openers.
            components = self._opened = self._open()
        return components

    def _open(self) -> Opened[C]:
        components, failures, owners = dict[str, C](), dict[str, StorageError](), dict[int, list[str]]()
        for name, opener in self._openers.items():
            try:
                component = opener()
                owners.setdefault(self._number(name, component), []).append(name)
                components[name] = component
            except StorageError as error:
                _LOGGER.warning("%s %r is not used: %s", self._title, name, error)
                failures[name] = error
        clashes = dict[int, StorageError]()
        for number, names in owners.items():
            if len(names) > 1:
                clashes[number] = self._clash(number, names)
                failures |= dict.fromkeys(names, clashes[number])
        by_number = {number: components[names[0]] for number, names in owners.items() if len(names) == 1}
        return Opened(
            {name: component for name, component in components.items() if name not in failures},
            by_number,
            failures,
            clashes,
        )

    def _number(self, name: str, component: C) -> int:
        number = getattr(component, self._attribute, None)
        if not isinstance(number, int) or number not in self._numbers:
            allowed = f"{self._numbers.start} to {self._numbers.stop - 1}"
            raise PluginError(f"{self._title} {name!r}: {self._attribute} must be {allowed}, not {number!r}")
        return number

    def _clash(self, number: int, names: list[str]) -> PluginClashError:
        owners = " and ".join(f"{self._title} {name!r}" for name in names)
        return PluginClashError(
            f"{owners} have the same {self._attribute} {number}: add all but one plugin to plugins.block"
        )
