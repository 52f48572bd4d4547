"""Example of a plugin: a cleanup policy that removes each record after the lifetime in its header."""

from __future__ import annotations

from collections.abc import Iterable

from stratalog.spi import CleanupPolicy, OpenContext, Provider, hookimpl
from ttl_header.settings import TtlHeaderSection


@hookimpl
def stratalog_cleanup_policies() -> Iterable[Provider[CleanupPolicy]]:
    """Return the provider of the policy ``ttl_header``."""
    return (
        Provider(
            name="ttl_header", open=_open, topic_section=TtlHeaderSection, capabilities=("expiry by a duration each",)
        ),
    )


def _open(context: OpenContext) -> CleanupPolicy:
    from ttl_header.policy import TtlHeaderPolicy  # noqa: PLC0415 - a provider imports when it opens

    del context
    return TtlHeaderPolicy()
