"""Settings of a topic for the extra index ``bloom``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from stratalog.spi import Section, key

NAME: Final = "bloom"


@dataclass(frozen=True, slots=True, kw_only=True)
class BloomSection(Section):
    """Settings for the size of filters. A change applies only to new filters."""

    title: ClassVar[str] = "Bloom filters of keys"

    # One entry for each setting, not one line for each argument:
    # fmt: off
    bits_per_key: int = key("bloom.bits.per.key", 10, at_least=1, at_most=40,
        doc="Bits of the filter for each key. With 10 bits, about one in 120 absent keys seems to be present; with 15 "
        "bits, one in 1,400.")
    max_keys: int = key("bloom.max.keys", 4_000_000, at_least=1,
        doc="Maximum number of keys of a segment with a filter. Building a filter needs up to 16 bytes of memory for "
        "each key.")
    # fmt: on
