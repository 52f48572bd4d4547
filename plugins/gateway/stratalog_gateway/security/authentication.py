"""The mechanisms of SASL that the settings enable.

Source: apache/kafka SaslChannelBuilder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from stratalog.errors import ConfigError, PluginImportError
from stratalog.spi import Clock
from stratalog_gateway.security.mechanisms import Mechanism, OAuthBearer, Plain, Scram
from stratalog_gateway.security.security_settings import OAUTHBEARER, PLAIN, SecuritySection
from stratalog_gateway.security.users import Credential, load_users
from stratalog_gateway.security.watched_files import WatchedFiles


def enabled_mechanisms(settings: SecuritySection, clock: Clock) -> Mapping[str, Callable[[], Mechanism]]:
    """Return the function that begins an authentication, by the name of each enabled mechanism.

    Raises:
        ConfigError: no mechanism is enabled, or a file that one needs is missing or wrong.
        PluginImportError: OAUTHBEARER is enabled, and PyJWT is not installed.
    """
    if not settings.mechanisms:
        raise ConfigError("sasl.enabled.mechanisms is empty: a listener with SASL needs a mechanism")
    found: dict[str, Callable[[], Mechanism]] = {}
    if set(settings.mechanisms) - {OAUTHBEARER}:
        if not settings.users_file:
            raise ConfigError("users.file is not set: PLAIN and SCRAM need a file of users").advised(
                "create one with `stratalog users add`"
            )
        path = Path(settings.users_file)
        users = WatchedFiles((path,), lambda: load_users(path), clock)
        found = {name: partial(_with_users, name, users) for name in settings.mechanisms}
    if OAUTHBEARER in settings.mechanisms:
        found[OAUTHBEARER] = partial(OAuthBearer, _token_check(settings, clock))
    return {name: found[name] for name in settings.mechanisms}


def _with_users(name: str, users: WatchedFiles[dict[str, dict[str, Credential]]]) -> Mechanism:
    return Plain(users.value()) if name == PLAIN else Scram(name, users.value())


def _token_check(settings: SecuritySection, clock: Clock) -> Callable[[str], tuple[str, int]]:
    try:
        from stratalog_gateway.security.tokens import TokenCheck  # noqa: PLC0415 - PyJWT is an extra
    except ImportError as error:
        raise PluginImportError("PyJWT is not installed", "gateway", "stratalog[gateway-oauth]") from error
    return TokenCheck(settings, clock)
