"""Example of a plugin: a service that replicates the logs of one engine (leader) to other engines (followers)."""

from __future__ import annotations

from collections.abc import Iterable

from replica.follower import Follower
from replica.leader import Leader
from replica.settings import ReplicaSection
from stratalog.errors import ConfigError
from stratalog.spi import OpenContext, Provider, Service, hookimpl


@hookimpl
def stratalog_services() -> Iterable[Provider[Service]]:
    """Return the provider of the service ``replica``."""
    return (Provider[Service](name="replica", open=_open, engine_section=ReplicaSection),)


def _open(context: OpenContext) -> Service:
    settings = context.section
    if not isinstance(settings, ReplicaSection) or bool(settings.listen) == bool(settings.leader):
        raise ConfigError(
            "[plugins.replica] needs listen=HOST:PORT to lead, or leader=HOST:PORT to follow, and not both"
        )
    return (Leader if settings.listen else Follower)(settings, context.env.clock)
