"""Peak memory of a step in a process of its own, from the kernel's accounts (Linux)."""

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
    """The result of a step, and the growth of the resident memory at the step's peak."""

    result: T
    bytes: int


def peak_of(step: Callable[[], T]) -> Peak[T]:
    """Run a step and account for it.

    Memory that was freed before and that the process still holds is given to the step for free: run what matters in a
    process that has done little else.

    Raises:
        UnsupportedPlatformError: there is no such account here.
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
        name, _, rest = line.partition(":")
        if name == field:
            return int(rest.split()[0]) << 10
    raise UnsupportedPlatformError(f"the kernel does not tell {field}")
