"""Base class of objects that must be closed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self


class Closeable(ABC):
    """A context manager that calls its ``close`` at the end of a ``with`` block, even after an error."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Release all resources. Do nothing if the object is closed already."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
