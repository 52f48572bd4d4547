"""versitygw, a second S3 server for tests in addition to moto. It is built once from its published Go module."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from socket import create_connection
from typing import Any, Final

from ports import free_ports

VERSION: Final = "v1.8.0"
_MODULE: Final = "github.com/versity/versitygw/cmd/versitygw"
_ACCESS, _SECRET = "gateway-key", "gateway-secret"
NAME: Final = "store.stratalog.example"  # host name that ``elsewhere`` uses for this machine
_START_S: Final = 30.0
_BUILD_S: Final = 600


class NoGatewayError(Exception):
    """The server cannot be built on this machine; the text has the reason."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """A running server with one empty bucket."""

    port: int
    bucket: str

    @property
    def options(self) -> dict[str, Any]:
        """Return ``tier_options`` for the server; it checks signatures."""
        return {
            "key": _ACCESS,
            "secret": _SECRET,
            "endpoint_url": f"http://127.0.0.1:{self.port}",
            "client_kwargs": {"region_name": "us-east-1"},
        }

    @property
    def elsewhere(self) -> str:
        """Return the server's URL with a host name that is not local. It needs the resolver of ``resolved``."""
        return f"http://{NAME}:{self.port}"

    def uri(self, prefix: str) -> str:
        """Return the URI of a prefix in the bucket."""
        return f"s3://{self.bucket}/{prefix}"


def built() -> Path:
    """Return the path of the program in the cache folder. The first call builds it, which takes 1.5 minutes.

    Other processes that call this function in the meantime wait for the build.

    Raises:
        NoGatewayError: Go is missing, or the build failed.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stratalog-versitygw"
    program = cache / VERSION / "versitygw"
    if program.exists():
        return program
    go = shutil.which("go")
    if go is None:
        raise NoGatewayError("versitygw is built by Go, and there is no Go")
    program.parent.mkdir(parents=True, exist_ok=True)
    with (cache / f"{VERSION}.lock").open("w") as lock, tempfile.TemporaryDirectory(dir=cache) as folder:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            _build(go, folder)
            Path(folder, "versitygw").replace(program)
    return program


def _build(go: str, folder: str) -> None:
    """Build the program in ``folder``; raise NoGatewayError if that fails."""
    # without C code, optimizations and debugging data, the build needs three quarters of the processor time
    options = ["-gcflags=all=-N -l", "-ldflags=-s -w"]
    try:
        process = subprocess.run(
            [go, "install", *options, f"{_MODULE}@{VERSION}"],
            env={**os.environ, "GOBIN": folder, "CGO_ENABLED": "0"},
            capture_output=True,
            text=True,
            timeout=_BUILD_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoGatewayError(f"go install did not come to an end: {error}") from error
    if process.returncode:
        raise NoGatewayError(f"go install failed: {process.stderr[-400:]}")


@contextlib.contextmanager
def gateway(folder: Path) -> Iterator[Gateway]:
    """Run a server over a folder on loopback until the ``with`` block ends."""
    bucket = "bucket"
    (folder / "root" / bucket).mkdir(parents=True)
    (folder / "metadata").mkdir()
    (port,) = free_ports(1)
    command = [str(built()), "--quiet", "--port", f"127.0.0.1:{port}", "--virtual-domain", f"{NAME}:{port}", "posix"]
    command += ["--sidecar", str(folder / "metadata"), str(folder / "root")]  # not every file system has attributes
    environment = {**os.environ, "ROOT_ACCESS_KEY": _ACCESS, "ROOT_SECRET_KEY": _SECRET}
    log = folder / "gateway.log"
    with log.open("wb") as output, subprocess.Popen(command, env=environment, stdout=output, stderr=output) as process:
        try:
            _wait(port, process, log)
            yield Gateway(port, bucket)
        finally:
            process.terminate()
            process.wait()


def resolved(resolve: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function like ``socket.getaddrinfo`` that resolves ``NAME`` and its subdomains to this machine."""

    def resolved_here(host: Any, *args: Any, **options: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        is_here = isinstance(name, str) and (name == NAME or name.endswith(f".{NAME}"))
        return resolve("127.0.0.1" if is_here else host, *args, **options)

    return resolved_here


def _wait(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    end_s = time.perf_counter() + _START_S
    while process.poll() is None and time.perf_counter() < end_s:
        with contextlib.suppress(OSError), create_connection(("127.0.0.1", port), timeout=1):
            return
    raise NoGatewayError(f"versitygw did not start: {log.read_text(encoding='utf-8')[-400:]}")
