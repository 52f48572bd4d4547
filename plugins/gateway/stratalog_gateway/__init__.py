"""Gateway through which Kafka clients use an engine, with Kafka's wire protocol.

The import of this package imports neither click nor kio. kio is the library that encodes Kafka's messages.
"""

from __future__ import annotations

from collections.abc import Iterable

from stratalog.errors import ConfigError, PluginImportError
from stratalog.spi import Command, OpenContext, Provider, Service, hookimpl
from stratalog_gateway.settings import GatewaySection


@hookimpl
def stratalog_services() -> Iterable[Provider[Service]]:
    """Return the provider of the service ``gateway``. kio is imported when the service is opened."""
    return (
        Provider[Service](
            name="gateway",
            open=_open_service,
            engine_section=GatewaySection,
            extensions=("stratalog_gateway.wire.codecs_c",),
        ),
    )


@hookimpl
def stratalog_commands() -> Iterable[Command]:
    """Return the commands ``stratalog serve`` and ``stratalog users``."""
    return (
        Command("serve", "Serve log directories to Kafka clients.", _load_serve),
        Command("users", "Manage the users that authenticate at the gateway.", _load_users),
    )


def _open_service(context: OpenContext) -> Service:
    if not isinstance(context.section, GatewaySection):
        raise ConfigError("[plugins.gateway] was not read")
    try:
        from stratalog_gateway.gateway_service import GatewayService  # noqa: PLC0415 - only if the service is used
    except ImportError as error:
        raise PluginImportError("kio is not installed", "gateway", "stratalog[gateway]") from error
    return GatewayService(context.section, context.env)


def _load_serve() -> object:
    try:
        from stratalog_gateway.serve_command import serve  # noqa: PLC0415 - only if the command is used
    except ImportError as error:
        raise PluginImportError("kio is not installed", "gateway", "stratalog[gateway]") from error
    return serve


def _load_users() -> object:
    from stratalog_gateway.users_command import users  # noqa: PLC0415 - only if the command is used

    return users
