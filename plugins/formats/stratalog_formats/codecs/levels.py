"""Which compression levels a codec takes."""

from __future__ import annotations

from stratalog.spi import ConfigError


def checked_level(name: str, level: int | None, levels: range, default: int) -> int:
    """``level``, or ``default`` for None.

    Raises:
        ConfigError: ``levels`` does not hold it.
    """
    if level is None:
        return default
    if level not in levels:
        raise ConfigError(f"{name} has no such level: choose {levels[0]} to {levels[-1]} level={level}")
    return level
