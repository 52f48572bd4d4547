"""Checksums by which a store verifies uploads.

botocore's own checksums are not used, because they change the encoding of the body. Some S3-compatible servers do not
understand this encoding.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import crc32c

from stratalog.spi import Buffer


class Checksum(NamedTuple):
    """A kind of checksum.

    Attributes:
        parameter: request parameter that contains the checksum; "" if there is no checksum.
        algorithm: name of the algorithm that a multipart upload announces; "" if it announces no algorithm.
    """

    parameter: str
    algorithm: str
    compute: Callable[[Buffer], bytes]

    def parameters(self, data: Buffer) -> dict[str, str]:
        """Return the checksum parameter of a request with the body ``data``, by name.

        Return {} for the kind without checksum.
        """
        return {self.parameter: base64.b64encode(self.compute(data)).decode()} if self.parameter else {}


def _crc32c(data: Buffer) -> bytes:
    checksum: int = crc32c.crc32c(data)
    return checksum.to_bytes(4, "big")


def _crc32(data: Buffer) -> bytes:
    return zlib.crc32(data).to_bytes(4, "big")


def _md5(data: Buffer) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()


def sign_with_md5(request: Any, **_: object) -> None:
    """Replace the checksum of a request by ``Content-MD5``. botocore calls the function before it signs the request.

    botocore sends CRC-32 with each request that must have a checksum, and has no parameter for ``Content-MD5`` there.
    """
    for name in [name for name in request.headers if "checksum" in name.lower()]:
        del request.headers[name]
    del request.headers["Content-MD5"]  # two threads can register this function twice, and an assignment adds a line
    request.headers["Content-MD5"] = base64.b64encode(_md5(request.body)).decode()


CHECKSUMS: Final[Mapping[str, Checksum]] = MappingProxyType(
    {
        "crc32c": Checksum("ChecksumCRC32C", "CRC32C", _crc32c),
        "crc32": Checksum("ChecksumCRC32", "CRC32", _crc32),
        "md5": Checksum("ContentMD5", "", _md5),
        "none": Checksum("", "", bytes),
    }
)
