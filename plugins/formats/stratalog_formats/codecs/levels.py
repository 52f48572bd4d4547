"""Check of compression levels."""

from __future__ import annotations

from stratalog.errors import ConfigError


def check_level(name: str, level: int | None, levels: range, default: int) -> int:
    """Return ``level``, or ``default`` for None.

    Raises:
        ConfigError: ``level`` is not in ``levels``.
    """
    if level is None:
        return default
    if level not in levels:
        raise ConfigError(f"{name} has no such level: choose {levels[0]} to {levels[-1]} (level={level})")
    return level
