"""Kafka's cleanup policies ``delete`` and ``compact``, and policies that Kafka lacks, as plugins."""

from __future__ import annotations

from collections.abc import Iterable

from stratalog.spi import CleanupPolicy, OpenContext, Provider, hookimpl
from stratalog_compaction.sections import HeaderSection, TtlSection


def _open_delete(context: OpenContext) -> CleanupPolicy:
    from stratalog_compaction.delete import DeletePolicy  # noqa: PLC0415 - a provider imports when it opens

    del context
    return DeletePolicy()


def _open_compact(context: OpenContext) -> CleanupPolicy:
    from stratalog_compaction.compact import CompactPolicy  # noqa: PLC0415 - a provider imports when it opens

    return CompactPolicy(context.env.chance)


def _open_latest_by_timestamp(context: OpenContext) -> CleanupPolicy:
    from stratalog_compaction.latest import LatestByTimestampPolicy  # noqa: PLC0415 - a provider imports when it opens

    return LatestByTimestampPolicy(context.env.chance)


def _open_latest_by_header(context: OpenContext) -> CleanupPolicy:
    from stratalog_compaction.latest import LatestByHeaderPolicy  # noqa: PLC0415 - a provider imports when it opens

    return LatestByHeaderPolicy(context.env.chance)


def _open_ttl(context: OpenContext) -> CleanupPolicy:
    from stratalog_compaction.ttl import TtlPolicy  # noqa: PLC0415 - a provider imports when it opens

    del context
    return TtlPolicy()


@hookimpl
def stratalog_cleanup_policies() -> Iterable[Provider[CleanupPolicy]]:
    """Return the providers of the cleanup policies in this package."""
    return (
        Provider(name="delete", open=_open_delete, capabilities=("time", "size", "start offset", "local tier")),
        Provider(
            name="compact",
            open=_open_compact,
            capabilities=("latest by key", "start offset"),
            extensions=("stratalog_compaction.keymap_c",),
        ),
        Provider(
            name="latest_by_timestamp",
            open=_open_latest_by_timestamp,
            capabilities=("latest by timestamp",),
            extensions=("stratalog_compaction.versions_c",),
        ),
        Provider(
            name="latest_by_header",
            open=_open_latest_by_header,
            topic_section=HeaderSection,
            capabilities=("latest by a number in a header",),
            extensions=("stratalog_compaction.versions_c", "stratalog_compaction.headers_c"),
        ),
        Provider(
            name="ttl",
            open=_open_ttl,
            topic_section=TtlSection,
            capabilities=("expiry by timestamp", "by header"),
            extensions=("stratalog_compaction.headers_c",),
        ),
    )
