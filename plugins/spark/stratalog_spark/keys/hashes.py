"""Keyed 128-bit hashes of keys, which tasks exchange instead of keys. Equal keys have equal hashes.

Hashes of 64 bits would be too short: with 10^9 keys, two different keys could have equal hashes. The hashes are keyed
with a secret, so that no producer can create a key with the hash of another key. ``hashes_c`` is the compiled version
of this module, and computes different hashes. Code that compares hashes of several processes must first compare
``KIND``.
"""

from __future__ import annotations

from hashlib import blake2b
from types import ModuleType
from typing import Any, Final

import numpy as np
import pyarrow as pa

from stratalog.spi import extension

EXTENSIONS: Final = ("stratalog_spark.keys.hashes_c",)
SECRET_BYTES: Final = 16
_HASH_BYTES: Final = 16
_NO_KEY: Final = bytes(_HASH_BYTES)

_twin: Final[ModuleType | None] = extension(EXTENSIONS[0])
KIND: Final = 0 if _twin is None else 1
"""Number of the implementation that this process uses: 0 is pure Python, 1 is compiled."""

DIFFERENT_KINDS: Final = (
    "the driver or some workers have the compiled code of stratalog and others do not: install the same wheel on all"
)
"""Error text for a job whose processes have different values of ``KIND``."""


def hash_keys(keys: pa.Array[Any], secret: bytes) -> Any:
    """Return the hashes of a binary column as a numpy array of shape (n, 2) and type uint64.

    The hash of null is (0, 0). Raise ValueError if the secret does not have 16 bytes.
    """
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a secret has {SECRET_BYTES} bytes, not {len(secret)}")
    if _twin is None:
        raw = b"".join(_hash(key, secret) for key in keys.to_pylist())
        return np.frombuffer(raw, np.uint64).reshape(-1, 2)
    _, ends, data = keys.buffers()
    assert ends is not None  # Arrow may omit a buffer only if the array is empty
    raw = _twin.hash_items(
        memoryview(ends), memoryview(data if data is not None else b""), keys.offset, len(keys), secret
    )
    hashes: Any = np.frombuffer(raw, np.uint64).reshape(-1, 2)
    if keys.null_count:
        hashes = np.where(keys.is_valid().to_numpy(zero_copy_only=False)[:, None], hashes, np.uint64(0))
    return hashes


def _hash(key: bytes | None, secret: bytes) -> bytes:
    if key is None:
        return _NO_KEY
    digest = blake2b(key, digest_size=_HASH_BYTES, key=secret).digest()
    return digest if digest != _NO_KEY else digest[:-1] + b"\1"
