"""Checks that requests are encrypted, and that certificates are verified, for all sources of the configuration."""

from __future__ import annotations

import ipaddress
import os
import ssl
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from stratalog.errors import ConfigError

UNENCRYPTED: Final = (
    "requests to http://%s are not encrypted; the network can read and change records (allow_http) uri=%s"
)
_FALSE_WORDS: Final = frozenset({"false", "no", "off", "0", "none", "null"})
_VERIFY_ADVICE: Final = "TLS is always verified: set it to the path of a CA bundle, or remove it"
_BUNDLE_VARIABLES: Final = ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE")
_VERIFY_OPTIONS: Final = frozenset({
    "verify", "verify_ssl", "ssl_verify", "verify_certs", "connection_verify", "check_hostname", "assert_hostname",
})  # fmt: skip


def check_endpoint(url: str, *, allow_http: bool = False) -> str:
    """Check the URL of a service. Return its host if requests to it cross a network unencrypted; otherwise "".

    Raise ConfigError if ``url`` is not an http or https URL, contains a user name, or has ``http://`` for another
    machine without ``allow_http``.
    """
    try:
        parts = urlsplit(url)
        host, user = parts.hostname or "", parts.username
    except ValueError:
        raise ConfigError("the endpoint is not a URL") from None
    if user is not None:
        raise ConfigError("the endpoint must not contain credentials: put them into the environment")
    if not host or parts.scheme not in {"http", "https"}:
        raise ConfigError("the endpoint must be a URL that starts with https://")
    if parts.scheme == "https" or _is_loopback(host):
        return ""
    if not allow_http:
        raise ConfigError(
            f"the endpoint http://{host} is not encrypted: use https://, or set allow_http=true to accept that the "
            "network can read and change records"
        )
    return host


def check_bundle(value: object, option_name: str) -> str | bool | None:
    """Check the value of a ``verify`` option. Return True, the path of a CA bundle, or None if the option is not set.

    The text "true" is converted to True, and a path object to text.

    Raises:
        ConfigError: the value is not allowed, for example False, "false", "" or 0. The error contains ``option_name``.
    """
    if value is None or value is True:
        return value
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, str):
        word = value.strip().lower()
        if word == "true":
            return True
        if word and word not in _FALSE_WORDS:
            return value
    raise ConfigError(f"{option_name}: {_VERIFY_ADVICE}")


def check_variables(environment: Mapping[str, str]) -> None:
    """Raise ConfigError if a variable for the CA bundle is empty or false.

    botocore might then not verify certificates.
    """
    for name in _BUNDLE_VARIABLES:
        check_bundle(environment.get(name), f"environment variable {name}")


def check_client(client: Any, session: Any) -> None:
    """Check the TLS settings of a botocore client. AWS's files and the user's session can change them, too.

    Raises:
        ConfigError: certificates would not be verified, or TLS would end at a proxy.
    """
    check_bundle(session.get_config_variable("ca_bundle"), "ca_bundle of the session or of AWS's configuration file")
    config = client.meta.config
    context = (getattr(config, "connector_args", None) or {}).get("ssl_context")
    if context is not None and not (context.verify_mode is ssl.CERT_REQUIRED and context.check_hostname):
        raise ConfigError("config_kwargs.connector_args.ssl_context does not verify certificates and host names")
    if (config.proxies_config or {}).get("proxy_use_forwarding_for_https"):
        raise ConfigError(
            "config_kwargs.proxies_config: remove proxy_use_forwarding_for_https, because TLS must not end at the proxy"
        )


def endpoints(options: Mapping[str, object]) -> list[str]:
    """Return the URLs of services in the options of a library: ``endpoint_url``, and URLs in ``connection_string``."""
    urls = [options["endpoint_url"]] if options.get("endpoint_url") else []
    text = options.get("connection_string")
    fields = dict(part.split("=", 1) for part in text.split(";") if "=" in part) if isinstance(text, str) else {}
    urls += [value for name, value in fields.items() if name.lower().endswith("endpoint")]
    if fields.get("DefaultEndpointsProtocol", "").lower() == "http" and "BlobEndpoint" not in fields:
        urls.append(f"http://{fields.get('AccountName', '')}.{fields.get('EndpointSuffix', 'core.windows.net')}")
    return [str(url) for url in urls]


def check_options(options: Mapping[str, object], path: str = "") -> None:
    """Check the options of a library other than botocore, with their nested tables. ``path`` is their name in errors.

    Raises:
        ConfigError: an option such as ``verify`` switches off the verification of certificates.
    """
    for name, value in options.items():
        where = f"{path}{name}"
        if isinstance(value, Mapping):
            check_options({str(inner): item for inner, item in value.items()}, f"{where}.")
        elif name.lower() in _VERIFY_OPTIONS and not isinstance(value, ssl.SSLContext):
            check_bundle(value, f"tier option {where}")


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
