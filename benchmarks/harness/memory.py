"""Peak memory of a step, as reported by the kernel (Linux)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

T = TypeVar("T")
_STATUS: Final = Path("/proc/self/status")
_FORGET: Final = Path("/proc/self/clear_refs")
_FORGET_PEAK: Final = "5"


class UnsupportedPlatformError(Exception):
    """This system does not report the peak memory of a step."""


@dataclass(frozen=True, slots=True)
class Peak(Generic[T]):
    """The result of a step, and the growth of the resident memory at the step's peak in bytes."""

    result: T
    bytes: int


def peak_of(step: Callable[[], T]) -> Peak[T]:
    """Run a step, and return its result and its peak memory.

    A step can reuse memory that the process freed before and still holds; the peak does not contain this memory. So run
    the step in a process that has done little else.

    Raises:
        UnsupportedPlatformError: the system does not report the peak memory.
    """
    try:
        _FORGET.write_text(_FORGET_PEAK, encoding="ascii")
    except OSError as error:
        raise UnsupportedPlatformError(f"no account of peak memory: {error}") from error
    before = _bytes("VmRSS")
    result = step()
    return Peak(result, max(0, _bytes("VmHWM") - before))


def _bytes(field: str) -> int:
    for line in _STATUS.read_text(encoding="ascii").splitlines():
        name, _, text = line.partition(":")
        if name == field:
            return int(text.split()[0]) << 10
    raise UnsupportedPlatformError(f"the kernel does not tell {field}")
