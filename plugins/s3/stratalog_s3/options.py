"""Keyword arguments for s3fs. They come from the user's options and settings, and from this plugin."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from stratalog import __version__
from stratalog.errors import ConfigError
from stratalog.spi import Section, key
from stratalog_s3.settings import S3Section
from stratalog_s3.tls import check_bundle, check_endpoint, check_variables

_RESERVED: Final = frozenset({"asynchronous", "loop", "skip_instance_cache", "use_listings_cache"})
_TEXT_OPTIONS: Final = ("key", "secret", "token", "username", "password", "endpoint_url")
_CONFIG: Final[Mapping[str, Any]] = {
    "connect_timeout": 5,
    "read_timeout": 60,
    "max_pool_connections": 50,
    "user_agent": f"stratalog/{__version__}",  # botocore builds its own long one twice for each request
    "request_checksum_calculation": "when_required",  # this plugin computes the checksums of uploads
}
_ONE_ATTEMPT: Final[Mapping[str, Any]] = {"total_max_attempts": 1, "mode": "standard"}
_QUIET_LOGGERS: Final = ("botocore", "aiobotocore")
_SOURCE: Final = "tier options"


@dataclass(frozen=True, slots=True, kw_only=True)
class _TypedOptions(Section):
    """Options of s3fs that are not text. Text from a command line is converted: "false" becomes False."""

    title: ClassVar[str] = "Options of s3fs"

    anon: bool = key("anon", False, doc="Send unsigned requests.")
    use_ssl: bool = key("use_ssl", True, doc="Encrypt requests; the scheme of the endpoint decides.")
    requester_pays: bool = key("requester_pays", False, doc="The requester pays for requests.")
    version_aware: bool = key("version_aware", False, doc="Ask for versions of objects.")
    cache_regions: bool = key("cache_regions", False, doc="Look up the region of the bucket.")
    fixed_upload_size: bool = key("fixed_upload_size", False, doc="Parts of s3fs's own uploads have one size.")
    local_expiry_check: bool = key("local_expiry_check", False, doc="s3fs's own reads compare ETags.")
    default_fill_cache: bool = key("default_fill_cache", True, doc="s3fs's own reads keep what is skipped.")
    default_block_size: int = key("default_block_size", 50 << 20, at_least=1, doc="Block of s3fs's own reads (bytes).")
    max_concurrency: int = key("max_concurrency", 10, at_least=1, doc="Parallel requests of s3fs's own transfers.")


def filesystem_options(options: Mapping[str, object], settings: S3Section | None = None) -> dict[str, Any]:
    """Return the keyword arguments for s3fs.

    They switch off its caches, and also its retries, because the core retries. ``options`` of the tier override
    ``settings`` of ``[plugins.s3]``, which are the defaults if None.

    Raises:
        ConfigError: an option must not be set, an option has the wrong type, an endpoint is not allowed, or TLS
            certificates would not be verified.
    """
    section = settings or S3Section()
    reserved = sorted(_RESERVED & set(options))
    if reserved:
        raise ConfigError(f"stratalog sets tier option {reserved[0]!r}: remove it")
    arguments = {name: value for name, value in options.items() if value is not None}
    _check_texts(arguments)
    arguments.update(_convert({name: arguments[name] for name in _TypedOptions.keys() if name in arguments}, ""))  # noqa: SIM118 - a classmethod
    client = _client(_mapping(arguments, "client_kwargs"), section)
    if section.endpoint_url and "endpoint_url" not in arguments and "endpoint_url" not in client:
        arguments["endpoint_url"] = section.endpoint_url
    for endpoint in (arguments.get("endpoint_url"), client.get("endpoint_url")):
        if endpoint is not None:
            check_endpoint(str(endpoint), allow_http=section.allow_http)
    check_variables(os.environ)
    if "s3_additional_kwargs" in arguments:
        arguments["s3_additional_kwargs"] = _mapping(arguments, "s3_additional_kwargs")
    return {
        **arguments,
        "client_kwargs": client,
        "config_kwargs": _config(_mapping(arguments, "config_kwargs"), section),
        "skip_instance_cache": True,
        "use_listings_cache": False,
    }


def quieten_botocore() -> None:
    """Set the levels of botocore's loggers to at least INFO, because botocore logs session tokens at lower levels."""
    for name in _QUIET_LOGGERS:
        logger = logging.getLogger(name)
        if logger.level < logging.INFO:
            logger.setLevel(logging.INFO)


def _check_texts(options: Mapping[str, object]) -> None:
    """Raise ConfigError if the value of a text option is not text. The error does not contain the value."""
    for name in _TEXT_OPTIONS:
        if not isinstance(options.get(name, ""), str):
            raise ConfigError(f"tier option {name!r} must be text")


def _convert(options: Mapping[str, object], table: str) -> dict[str, object]:
    source = f"{_SOURCE} {table}".rstrip()
    converted = _TypedOptions.from_mapping(options, source).to_mapping()
    if not converted["use_ssl"]:
        raise ConfigError(
            "use_ssl must be true: to connect without TLS, use an endpoint_url that starts with http://, and "
            f"allow_http (source={source})"
        )
    return {name: converted[name] for name in options}


def _client(options: dict[str, Any], section: S3Section) -> dict[str, Any]:
    client = {name: value for name, value in options.items() if value is not None}
    if "use_ssl" in client:
        client.update(_convert({"use_ssl": client["use_ssl"]}, "client_kwargs"))
    if "verify" in client:
        client["verify"] = check_bundle(client["verify"], "tier option client_kwargs.verify")
    if not isinstance(client.get("endpoint_url", ""), str):
        raise ConfigError("tier option client_kwargs.endpoint_url must be text")
    return {"region_name": section.region, **client} if section.region else client


def _config(options: dict[str, Any], section: S3Section) -> dict[str, Any]:
    config = {**_CONFIG, **options, "retries": dict(_ONE_ATTEMPT)}
    if section.addressing != "auto":
        config["s3"] = {"addressing_style": section.addressing, **(config.get("s3") or {})}
    return config


def _mapping(options: Mapping[str, object], name: str) -> dict[str, Any]:
    value = options.get(name)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"tier option {name!r} must be a table")
    return dict(value)
