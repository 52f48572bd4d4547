"""Checksums that a store checks uploads by.

Made here: where botocore makes them the body's encoding changes, which not every server of S3's protocol understands.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

import crc32c

from stratalog.spi import Buffer


class Checksum(NamedTuple):
    """A kind of checksum.

    Attributes:
        parameter: of the requests; "" for none.
        algorithm: what an upload in parts is announced with; "" if it is not.
        of: computes it.
    """

    parameter: str
    algorithm: str
    of: Callable[[Buffer], bytes]

    def said(self, data: Buffer) -> dict[str, str]:
        """The parameter of a request with this body."""
        return {self.parameter: base64.b64encode(self.of(data)).decode()} if self.parameter else {}


def _crc32c(data: Buffer) -> bytes:
    found: int = crc32c.crc32c(data)
    return found.to_bytes(4, "big")


def _crc32(data: Buffer) -> bytes:
    return zlib.crc32(data).to_bytes(4, "big")


def _md5(data: Buffer) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()


CHECKSUMS: Final[Mapping[str, Checksum]] = MappingProxyType(
    {
        "crc32c": Checksum("ChecksumCRC32C", "CRC32C", _crc32c),
        "crc32": Checksum("ChecksumCRC32", "CRC32", _crc32),
        "md5": Checksum("ContentMD5", "", _md5),
        "none": Checksum("", "", bytes),
    }
)
