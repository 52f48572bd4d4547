"""kafka-python's own integration tests, from its source distribution, against the gateway.

Against a broker of Kafka 4.1, all of them pass. The tests run with the Python of this test run. Their additional
packages are installed into a folder of the cache.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path
from typing import Final

import pytest

from gateway_bed import served

pytest.importorskip("kafka", reason="kafka-python is not installed")

LIMIT_S: Final = 600
NEEDS: Final = ("pytest-mock", "py", "python-snappy", "cramjam", "lz4", "zstandard")
SUITES: Final = ("consumer", "producer", "admin")
LEFT_OUT: Final = {
    "test_create_describe_delete_acls": "the gateway of this test has no file of ACLs",
}
# The distribution lacks the module that starts brokers. With KAFKA_URI, the tests use a running broker.
SERVICE: Final = """
class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def open(self):
        pass

    close = dump_logs = stop = open


class SpawnedService(ExternalService):
    pass
"""


def pip(*arguments: str) -> None:
    """Run pip. Skip the test if it fails, for example without a package index."""
    command = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", *arguments]
    process = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - pip, with our own arguments
    if process.returncode:
        pytest.skip(f"pip cannot install the tests of kafka-python: {process.stderr.strip()[-200:]}")


@pytest.fixture(scope="module")
def suite() -> Path:
    """Return the folder of the unpacked distribution, with the packages that its tests need in ``needs``."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stratalog-suites"
    folder = cache / f"kafka_python-{version('kafka-python')}"
    if not (folder / "complete").exists():
        source = f"kafka-python=={version('kafka-python')}"
        pip("download", "--no-deps", "--no-binary", ":all:", "--dest", str(cache), source)
        with tarfile.open(f"{folder}.tar.gz") as archive:
            archive.extractall(cache, filter="data")
        pip("install", "--upgrade", "--no-deps", "--target", str(folder / "needs"), *NEEDS)
        for path in ("test/__init__.py", "test/integration/__init__.py"):
            (folder / path).touch()
        (folder / "test" / "service.py").write_text(SERVICE)
        (folder / "complete").touch()
    return folder


@pytest.mark.long
def test_the_integration_tests_of_kafka_python_pass(suite: Path, tmp_path: Path) -> None:
    with served(tmp_path, node_id=0, partitions=4, min_session_ms=1000) as gateway:
        environment = {
            **os.environ,
            "KAFKA_URI": f"kafka://{gateway.bootstrap}",
            "KAFKA_VERSION": "4.1.0",
            "KAFKA_ROOT": str(suite),
            "PROJECT_ROOT": str(suite),
            "PYTHONPATH": str(suite / "needs"),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        }
        command = [
            *(sys.executable, "-m", "pytest", "-q", "-rA", "--tb=short", "-o", "addopts=", "-p", "no:cacheprovider"),
            *("-p", "pytest_mock", "-p", "pytest_timeout", "--timeout=120", "-k", " and ".join(f"not {name}" for name in LEFT_OUT)),
            *(f"test/integration/test_{name}_integration.py" for name in SUITES),
        ]  # fmt: skip
        process = subprocess.run(  # noqa: S603 - pytest, with our own arguments
            command, cwd=suite, env=environment, capture_output=True, text=True, check=False, timeout=LIMIT_S
        )
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", process.stdout, re.MULTILINE)
    passed = re.findall(r"^PASSED (\S+)", process.stdout, re.MULTILINE)
    assert failed == [], process.stdout[-5000:]
    assert len(passed) >= 54, process.stdout[-2000:] + process.stderr[-2000:]
