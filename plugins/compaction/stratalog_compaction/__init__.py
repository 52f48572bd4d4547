"""Kafka's cleanup policies, ``delete`` and ``compact``, as plugins: they plan, the core executes."""

from __future__ import annotations

from collections.abc import Iterable

from stratalog.spi import CleanupPolicy, OpenContext, Provider, hookimpl


def _open_delete(context: OpenContext) -> CleanupPolicy:
    from stratalog_compaction.delete import DeletePolicy  # noqa: PLC0415 - a provider imports when it opens

    del context
    return DeletePolicy()


def _open_compact(context: OpenContext) -> CleanupPolicy:
    from stratalog_compaction.compact import CompactPolicy  # noqa: PLC0415 - a provider imports when it opens

    return CompactPolicy(context.env.chance)


@hookimpl
def stratalog_cleanup_policies() -> Iterable[Provider[CleanupPolicy]]:
    """``delete`` by time, size and start offset; ``compact`` by key."""
    return (
        Provider(name="delete", open=_open_delete, capabilities=("time", "size", "start offset", "local tier")),
        Provider(
            name="compact",
            open=_open_compact,
            capabilities=("latest by key", "start offset"),
            extensions=("stratalog_compaction.keymap_c",),
        ),
    )
