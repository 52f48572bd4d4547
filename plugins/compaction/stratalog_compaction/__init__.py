"""Kafka's cleanup policies ``delete`` and ``compact``, and policies that Kafka lacks, as plugins."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

from stratalog.spi import CleanupPolicy, OpenContext, Provider, hookimpl
from stratalog_compaction.sections import HeaderSection, TtlSection


def _opener(module: str, policy: str, *, needs_chance: bool = True) -> Callable[[OpenContext], Any]:
    """Return a function that imports a module of this package, and opens the class ``policy`` in it."""

    def open_policy(context: OpenContext) -> Any:
        arguments = (context.env.chance,) if needs_chance else ()
        return getattr(import_module(f"stratalog_compaction.{module}"), policy)(*arguments)

    return open_policy


@hookimpl
def stratalog_cleanup_policies() -> Iterable[Provider[CleanupPolicy]]:
    """Return the providers of the cleanup policies in this package."""
    return (
        Provider(
            name="delete", open=_opener("delete", "DeletePolicy", needs_chance=False),
            capabilities=("time", "size", "start offset", "local tier"),
        ),
        Provider(
            name="compact", open=_opener("compact", "CompactPolicy"), capabilities=("latest by key", "start offset"),
            extensions=("stratalog_compaction.keymap_c",),
        ),
        Provider(
            name="latest_by_timestamp", open=_opener("latest", "LatestByTimestampPolicy"),
            capabilities=("latest by timestamp",), extensions=("stratalog_compaction.versions_c",),
        ),
        Provider(
            name="latest_by_header", open=_opener("latest", "LatestByHeaderPolicy"), topic_section=HeaderSection,
            capabilities=("latest by a number in a header",),
            extensions=("stratalog_compaction.versions_c", "stratalog_compaction.headers_c"),
        ),
        Provider(
            name="ttl", open=_opener("ttl", "TtlPolicy", needs_chance=False), topic_section=TtlSection,
            capabilities=("expiry by timestamp", "by header"), extensions=("stratalog_compaction.headers_c",),
        ),
    )  # fmt: skip
