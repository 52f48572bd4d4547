"""Certificates for tests of TLS: an authority, and certificates that it signs."""

from __future__ import annotations

import datetime as dt
import ipaddress
import socket
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from stratalog_gateway.security.tls import TlsContext

DAY = dt.timedelta(days=1)


class Authority:
    """Certificate authority that signs certificates. ``file`` is the PEM file with the authority's own certificate."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder, self._key = folder, ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._certificate = self._signed(self._name, self._key, is_authority=True)
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, file: str, common_name: str, organization: str = "Example") -> Path:
        """Write a private key and its certificate, for 127.0.0.1 and for clients. Return the path of the PEM file."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = ((NameOID.COUNTRY_NAME, "DE"), (NameOID.ORGANIZATION_NAME, organization))
        subject = x509.Name(
            [*(x509.NameAttribute(*name) for name in names), x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
        )
        certificate = self._signed(subject, key, is_authority=False)
        path = self._folder / file
        fresh = path.with_suffix(".new")
        fresh.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
            + certificate.public_bytes(serialization.Encoding.PEM)
        )
        fresh.replace(path)
        return path

    def _signed(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, is_authority: bool) -> x509.Certificate:
        now = dt.datetime.now(dt.UTC)
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        usage = x509.KeyUsage(
            digital_signature=True, content_commitment=False, key_encipherment=False, data_encipherment=False,
            key_agreement=False, key_cert_sign=is_authority, crl_sign=is_authority, encipher_only=False,
            decipher_only=False,
        )  # fmt: skip
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - DAY)
            .not_valid_after(now + DAY)
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(names, critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        return builder.sign(self._key, hashes.SHA256())


def trusting(authority: Authority, certificate: Path | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.file))
    if certificate is not None:
        context.load_cert_chain(str(certificate))
    return context


def handshake(server: TlsContext, client: ssl.SSLContext) -> tuple[ssl.SSLSocket, ssl.SSLSocket]:
    """Return the server's and the client's socket of one TLS connection whose handshake is complete.

    Both handshakes advance alternately on the calling thread.
    """
    server_socket, client_socket = socket.socketpair()
    accepted = server.wrap_socket(server_socket)
    connected = client.wrap_socket(client_socket, server_hostname="127.0.0.1", do_handshake_on_connect=False)
    waiting = [accepted, connected]
    for endpoint in waiting:
        endpoint.setblocking(False)
    for _ in range(20):
        for endpoint in list(waiting):
            try:
                endpoint.do_handshake()
                waiting.remove(endpoint)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                continue
        if not waiting:
            for endpoint in (accepted, connected):
                endpoint.settimeout(10)
            return accepted, connected
    raise AssertionError("the handshake does not end")
