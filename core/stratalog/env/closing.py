"""What is open until somebody closes it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Closeable(ABC):
    """A context manager that is closed at the end of a ``with`` block, whatever happened in it."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Let go of all that is open. Twice is fine."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
