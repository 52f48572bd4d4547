"""What an S3 file system is made with: the user's options, and what this plugin insists on."""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from stratalog.spi import ConfigError

_OURS: Final = frozenset({"asynchronous", "loop", "skip_instance_cache", "use_listings_cache"})
_CONFIG: Final[Mapping[str, Any]] = {
    "connect_timeout": 5,
    "read_timeout": 60,
    "max_pool_connections": 50,
    "request_checksum_calculation": "when_required",  # uploads have ours
}
_ONE_TRY: Final[Mapping[str, Any]] = {"total_max_attempts": 1, "mode": "standard"}
_QUIET: Final = ("botocore", "aiobotocore")


def filesystem_options(options: Mapping[str, object]) -> dict[str, Any]:
    """Keyword arguments for s3fs: no caches, and one try a call, as retrying is the core's.

    Raises:
        ConfigError: an option is not the user's to set, an endpoint is not allowed, or TLS would not be verified.
    """
    refused = sorted(_OURS & set(options))
    if refused:
        raise ConfigError(f"tier option {refused[0]!r} is set by stratalog")
    client = _mapping(options, "client_kwargs")
    for endpoint in (options.get("endpoint_url"), client.get("endpoint_url")):
        if endpoint is not None:
            check_endpoint(str(endpoint))
    if client.get("verify") is False:
        raise ConfigError("tier option client_kwargs.verify: TLS is always verified; give the path of a CA bundle")
    config = {**_CONFIG, **_mapping(options, "config_kwargs"), "retries": dict(_ONE_TRY)}
    return {
        **options,
        "client_kwargs": client,
        "config_kwargs": config,
        "skip_instance_cache": True,
        "use_listings_cache": False,
    }


def check_endpoint(url: str) -> None:
    """Refuse what would send data in the clear, and addresses with credentials in them.

    Raises:
        ConfigError: plain ``http://`` to another host than this one, another scheme, or a user in the address.
    """
    try:
        parts = urlsplit(url)
        host, user = parts.hostname or "", parts.username
    except ValueError:
        raise ConfigError("the S3 endpoint is no URL") from None
    if user is not None:
        raise ConfigError("the S3 endpoint holds no credentials: give them as tier options or in the environment")
    if not host or parts.scheme not in {"http", "https"}:
        raise ConfigError("the S3 endpoint is a URL that starts with https://")
    if parts.scheme == "http" and not _is_loopback(host):
        raise ConfigError(f"the S3 endpoint http://{host} is not encrypted: use https://, http:// is for loopback only")


def quieten_botocore() -> None:
    """Keep botocore's loggers at INFO: below it they print session tokens."""
    for name in _QUIET:
        logger = logging.getLogger(name)
        if logger.level < logging.INFO:
            logger.setLevel(logging.INFO)


def _mapping(options: Mapping[str, object], name: str) -> dict[str, Any]:
    value = options.get(name)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"tier option {name!r} is a table")
    return dict(value)


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
