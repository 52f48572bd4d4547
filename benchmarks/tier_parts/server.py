"""The S3 server for both sides of a case: a separate process, whose time counts for neither side."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final

_SCRIPT: Final = Path(__file__).with_name("memory_s3.py")
_BUCKET: Final = "bucket"
_ENDED_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class LoopbackS3:
    """A server on loopback with one bucket."""

    port: int

    @property
    def options(self) -> dict[str, Any]:
        """File system options for a tier and for s3fs."""
        return {
            "key": "benchmark",
            "secret": "benchmark",
            "endpoint_url": f"http://127.0.0.1:{self.port}",
            "client_kwargs": {"region_name": "us-east-1"},
        }

    def uri(self, prefix: str) -> str:
        """Return the URI of a prefix in the bucket."""
        return f"s3://{_BUCKET}/{prefix}"

    def forget(self) -> None:
        """Delete all objects."""
        with closing(HTTPConnection("127.0.0.1", self.port)) as connection:
            connection.request("POST", "/")
            connection.getresponse().read()


@contextmanager
def loopback_s3() -> Iterator[LoopbackS3]:
    """Start the server for the duration of the ``with`` block."""
    command = [sys.executable, str(_SCRIPT)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield LoopbackS3(int(process.stdout.readline()))
        finally:
            process.stdin.close()
            process.wait(_ENDED_S)
