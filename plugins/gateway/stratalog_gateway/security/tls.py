"""TLS contexts of listeners, and principals of client certificates.

Source: apache/kafka DefaultSslEngineFactory, SslPrincipalMapper, DefaultKafkaPrincipalBuilder; RFC 2253.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Callable, Iterable
from typing import Any, Final

from stratalog.errors import ConfigError
from stratalog.spi import Clock
from stratalog_gateway.security.client import ANONYMOUS
from stratalog_gateway.security.security_settings import SecuritySection
from stratalog_gateway.security.watched_files import WatchedFiles

_VERIFY: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_KEYWORDS: Final = {
    "commonName": "CN", "localityName": "L", "stateOrProvinceName": "ST", "organizationName": "O",
    "organizationalUnitName": "OU", "countryName": "C", "streetAddress": "STREET", "domainComponent": "DC",
    "userId": "UID",
}  # fmt: skip
_EMAIL_OID: Final = "1.2.840.113549.1.9.1"  # emailAddress has no keyword in RFC 2253
_SPECIAL: Final = re.compile(r'([,+"\\<>;])')
_RULE: Final = re.compile(r"RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)\Z")
_RULE_ENDS: Final = re.compile(r",(?=\s*(?:RULE:|DEFAULT))")
_GROUP: Final = re.compile(r"\$(\d+)")


class TlsContext:
    """TLS context of a listener, with the key and certificates of PEM files. Thread-safe.

    If a file changes, new connections use the new contents. Open connections do not change. ``client_auth`` is "none",
    "requested" or "required", and applies to the certificates of clients.
    """

    def __init__(self, settings: SecuritySection, client_auth: str, clock: Clock) -> None:
        if not settings.keystore:
            raise ConfigError("ssl.keystore.location is not set: a listener with TLS needs a key and certificates")
        if client_auth != "none" and not settings.truststore:
            raise ConfigError(f"ssl.truststore.location is not set: ssl.client.auth={client_auth} needs certificates")
        self._settings, self._client_auth = settings, client_auth
        paths = (settings.keystore, settings.truststore) if client_auth != "none" else (settings.keystore,)
        self._files = WatchedFiles(paths, self._load, clock)

    def wrap_socket(self, connection: socket.socket) -> ssl.SSLSocket:
        """Return the connection over TLS. The TLS handshake has not begun."""
        return self._files.value().wrap_socket(connection, server_side=True, do_handshake_on_connect=False)

    def _load(self) -> ssl.SSLContext:
        settings = self._settings
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        versions = [_VERSIONS[name] for name in settings.tls_versions or _VERSIONS]
        context.minimum_version, context.maximum_version = min(versions), max(versions)
        if settings.cipher_suites:
            context.set_ciphers(":".join(settings.cipher_suites))
        context.load_cert_chain(settings.keystore, password=lambda: settings.key_password)  # no prompt
        if self._client_auth != "none":
            context.load_verify_locations(settings.truststore)
            context.verify_mode = _VERIFY[self._client_auth]
        return context


def certificate_subject(connection: ssl.SSLSocket) -> str | None:
    """Return the subject of the client's certificate in the format of RFC 2253; None without a certificate."""
    certificate: Any = connection.getpeercert()
    return distinguished_name(certificate["subject"]) if certificate else None


def distinguished_name(subject: Iterable[Iterable[tuple[str, str]]]) -> str:
    """Return a certificate's subject in the format of RFC 2253, such as ``CN=orders,O=Example``.

    The order of the names in ``subject`` is reversed.
    """
    return ",".join("+".join(_attribute(*attribute) for attribute in names) for names in reversed(list(subject)))


def _attribute(name: str, value: str) -> str:
    if name == "emailAddress":
        raw = value.encode()
        return f"{_EMAIL_OID}=#16{_der_length(len(raw))}{raw.hex()}"
    escaped = _SPECIAL.sub(r"\\\1", value)
    if escaped[:1] in {" ", "#"}:
        escaped = "\\" + escaped
    if len(value) > 1 and escaped.endswith(" "):
        escaped = escaped[:-1] + "\\ "
    return f"{_KEYWORDS.get(name, name)}={escaped}"


def _der_length(length: int) -> str:
    """Return the length of a value in DER, as hexadecimal digits.

    If it is 128 or more, the size of the length precedes it.
    """
    size_bytes = (length.bit_length() + 7) // 8
    return f"{length:02x}" if length < 0x80 else f"{0x80 | size_bytes:02x}{length:0{2 * size_bytes}x}"


def principal_mapping(rules: str) -> Callable[[str | None], str]:
    """Return a function that converts the subject of a certificate to a principal.

    For None, the function returns ``User:ANONYMOUS``. The function raises ssl.SSLError if no rule matches the subject.

    Args:
        rules: rules separated by commas. The first rule whose pattern matches the whole subject applies. A rule is
            ``DEFAULT``, which uses the subject, or ``RULE:PATTERN/REPLACEMENT/``. A final ``L`` or ``U`` converts the
            result to lower or upper case. An empty text means ``DEFAULT``.

    Raises:
        ConfigError: the format of a rule is wrong.
    """
    parsed = [_rule(text.strip()) for text in _RULE_ENDS.split(rules.strip() or "DEFAULT")]

    def map_subject(subject: str | None) -> str:
        if subject is None:
            return ANONYMOUS
        for rule in parsed:
            name = rule(subject)
            if name is not None:
                return f"User:{name}"
        raise ssl.SSLError(f"no rule of ssl.principal.mapping.rules matches {subject}")

    return map_subject


def _rule(text: str) -> Callable[[str], str | None]:
    if text == "DEFAULT":
        return lambda subject: subject
    match = _RULE.match(text)
    try:
        pattern = re.compile("" if match is None else match[1].replace(r"\/", "/"))
    except re.error:
        match = None
    if match is None:
        raise ConfigError(f"ssl.principal.mapping.rules: {text} is not of the form RULE:PATTERN/REPLACEMENT/[LU]")
    replacement, case = match[2].replace(r"\/", "/"), match[3]

    def map_subject(subject: str) -> str | None:
        subject_match = pattern.fullmatch(subject)
        if subject_match is None:
            return None
        try:
            principal_name = _GROUP.sub(lambda group: subject_match[int(group[1])] or "", replacement)
        except IndexError:
            return None
        return principal_name.lower() if case == "L" else principal_name.upper() if case == "U" else principal_name

    return map_subject
