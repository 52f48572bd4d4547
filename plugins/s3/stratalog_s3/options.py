"""Keyword arguments for s3fs, from the user's options and settings, and from this plugin."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from stratalog.errors import ConfigError
from stratalog.spi import Section, key
from stratalog_s3.settings import S3Section
from stratalog_s3.tls import check_endpoint, check_variables, checked_bundle

_OURS: Final = frozenset({"asynchronous", "loop", "skip_instance_cache", "use_listings_cache"})
_TEXTS: Final = ("key", "secret", "token", "username", "password", "endpoint_url")
_CONFIG: Final[Mapping[str, Any]] = {
    "connect_timeout": 5,
    "read_timeout": 60,
    "max_pool_connections": 50,
    "request_checksum_calculation": "when_required",  # this plugin computes the checksums of uploads
}
_ONE_TRY: Final[Mapping[str, Any]] = {"total_max_attempts": 1, "mode": "standard"}
_QUIET: Final = ("botocore", "aiobotocore")
_SOURCE: Final = "tier options"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Typed(Section):
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
    """Return the keyword arguments for s3fs, which switch off its caches and retries: the core retries.

    Args:
        options: options of the tier, which override the settings.
        settings: settings of ``[plugins.s3]``; None means the defaults.

    Raises:
        ConfigError: an option must not be set, an option has the wrong type, an endpoint is not allowed, or TLS
            certificates would not be verified.
    """
    chosen = settings or S3Section()
    refused = sorted(_OURS & set(options))
    if refused:
        raise ConfigError(f"stratalog sets tier option {refused[0]!r}: remove it")
    made = {name: value for name, value in options.items() if value is not None}
    _check_texts(made)
    made.update(_typed({name: made[name] for name in _Typed.keys() if name in made}, ""))  # noqa: SIM118 - a classmethod
    client = _client(_mapping(made, "client_kwargs"), chosen)
    if chosen.endpoint_url and "endpoint_url" not in made and "endpoint_url" not in client:
        made["endpoint_url"] = chosen.endpoint_url
    for endpoint in (made.get("endpoint_url"), client.get("endpoint_url")):
        if endpoint is not None:
            check_endpoint(str(endpoint), allow_http=chosen.allow_http)
    check_variables(os.environ)
    if "s3_additional_kwargs" in made:
        made["s3_additional_kwargs"] = _mapping(made, "s3_additional_kwargs")
    return {
        **made,
        "client_kwargs": client,
        "config_kwargs": _config(_mapping(made, "config_kwargs"), chosen),
        "skip_instance_cache": True,
        "use_listings_cache": False,
    }


def quieten_botocore() -> None:
    """Raise the levels of botocore's loggers to at least INFO, because botocore logs session tokens at lower levels."""
    for name in _QUIET:
        logger = logging.getLogger(name)
        if logger.level < logging.INFO:
            logger.setLevel(logging.INFO)


def _check_texts(options: Mapping[str, object]) -> None:
    """Raise ConfigError if the value of a text option is not text. The error does not show the value, a credential."""
    for name in _TEXTS:
        if not isinstance(options.get(name, ""), str):
            raise ConfigError(f"tier option {name!r} must be text")


def _typed(options: Mapping[str, object], table: str) -> dict[str, object]:
    source = f"{_SOURCE} {table}".rstrip()
    found = _Typed.from_mapping(options, source).to_mapping()
    if not found["use_ssl"]:
        raise ConfigError(
            "use_ssl must be true: to connect without TLS, use an endpoint_url that starts with http://, and "
            f"allow_http source={source}"
        )
    return {name: found[name] for name in options}


def _client(given: dict[str, Any], chosen: S3Section) -> dict[str, Any]:
    client = {name: value for name, value in given.items() if value is not None}
    if "use_ssl" in client:
        client.update(_typed({"use_ssl": client["use_ssl"]}, "client_kwargs"))
    if "verify" in client:
        client["verify"] = checked_bundle(client["verify"], "tier option client_kwargs.verify")
    if not isinstance(client.get("endpoint_url", ""), str):
        raise ConfigError("tier option client_kwargs.endpoint_url is text")
    return {"region_name": chosen.region, **client} if chosen.region else client


def _config(given: dict[str, Any], chosen: S3Section) -> dict[str, Any]:
    config = {**_CONFIG, **given, "retries": dict(_ONE_TRY)}
    if chosen.addressing != "auto":
        config["s3"] = {"addressing_style": chosen.addressing, **(config.get("s3") or {})}
    return config


def _mapping(options: Mapping[str, object], name: str) -> dict[str, Any]:
    value = options.get(name)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"tier option {name!r} must be a table")
    return dict(value)
