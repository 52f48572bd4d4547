"""Temporary storage for the output of a layout.

Up to ``MEMORY_BYTES``, it is in memory; a larger output is in a file.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, Self

from stratalog.errors import StorageError
from stratalog.spi import Buffer

MEMORY_BYTES: Final = 8 << 20


class Spool:
    """Bytes that are written once and read any number of times. The end of its ``with`` statement deletes the bytes.

    The temporary file has no name. The folder for temporary files (``TMPDIR``) needs room for one stored segment.
    """

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(MEMORY_BYTES, prefix="stratalog-")  # noqa: SIM115 - closed by exit
        self.size_bytes = 0
        self.sha256 = ""  # hash of the original log; set by the writer of the spool

    def write(self, data: Buffer) -> None:
        """Add bytes at the end."""
        try:
            self._file.write(data)
        except OSError as error:
            raise _spool_error("written", error) from error
        self.size_bytes += len(data)

    def chunks(self, chunk_bytes: int) -> Iterator[Buffer]:
        """Yield all bytes from the start, in pieces of at most ``chunk_bytes``. Iterations must not overlap."""
        try:
            self._file.seek(0)  # writes the bytes that the file object still has in memory
        except OSError as error:
            raise _spool_error("written", error) from error
        try:
            while chunk := self._file.read(chunk_bytes):
                yield chunk
        except OSError as error:
            raise _spool_error("read", error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # close() may fail to write bytes in memory, which are no longer needed
            self._file.close()


def _spool_error(action: str, error: OSError) -> StorageError:
    try:
        folder = tempfile.gettempdir()
    except OSError:
        return StorageError(f"there is no usable folder for temporary files: {error.strerror}")
    return StorageError(f"the temporary file in {folder} cannot be {action}: {error.strerror}")
