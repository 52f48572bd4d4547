"""The SASL mechanisms that the settings enable.

Source: apache/kafka SaslChannelBuilder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from stratalog.errors import ConfigError, PluginImportError
from stratalog.spi import Clock
from stratalog_gateway.security.edited_file import EditedFile
from stratalog_gateway.security.mechanisms import Mechanism, OAuthBearer, Plain, Scram
from stratalog_gateway.security.security_settings import OAUTHBEARER, PLAIN, SecuritySection
from stratalog_gateway.security.users import Users


def enabled_mechanisms(
    settings: SecuritySection, users: EditedFile[Users] | None, clock: Clock
) -> Mapping[str, Callable[[], Mechanism]]:
    """Return functions that begin an authentication, by the name of the mechanism, for each enabled mechanism.

    Args:
        settings: settings of the gateway.
        users: the users of PLAIN and SCRAM; None if ``users.file`` is not set.
        clock: clock for checks of the file of OAUTHBEARER's keys.

    Raises:
        ConfigError: no mechanism is enabled; PLAIN or SCRAM is enabled, and ``users`` is None; or the keys of
            OAUTHBEARER are missing or wrong.
        PluginImportError: OAUTHBEARER is enabled, and PyJWT is not installed.
    """
    if not settings.mechanisms:
        raise ConfigError("sasl.enabled.mechanisms is empty: a listener with SASL needs a mechanism")
    found: dict[str, Callable[[], Mechanism]] = {}
    if set(settings.mechanisms) - {OAUTHBEARER}:
        if users is None:
            raise ConfigError("users.file is not set: PLAIN and SCRAM need a file of users").advised(
                "create one with `stratalog users add`"
            )
        found = {name: partial(_with_users, name, users) for name in settings.mechanisms}
    if OAUTHBEARER in settings.mechanisms:
        found[OAUTHBEARER] = partial(OAuthBearer, _token_check(settings, clock))
    return {name: found[name] for name in settings.mechanisms}


def _with_users(name: str, users: EditedFile[Users]) -> Mechanism:
    return Plain(users.current) if name == PLAIN else Scram(name, users.current)


def _token_check(settings: SecuritySection, clock: Clock) -> Callable[[str], tuple[str, int]]:
    try:
        from stratalog_gateway.security.tokens import TokenCheck  # noqa: PLC0415 - PyJWT is an extra
    except ImportError as error:
        raise PluginImportError("PyJWT is not installed", "gateway", "stratalog[gateway-oauth]") from error
    return TokenCheck(settings, clock)
