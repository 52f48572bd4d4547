from __future__ import annotations

import platform
import subprocess
import sys

import pytest

# The script runs in a new process, in which no large block was freed before. It frees two blocks, which glibc would
# return to the system.
_FAULTS = """
import resource, sys
from stratalog.env.allocator import reuse_large_blocks

def written(count, size_bytes=4 << 20):
    return [b"%" * size_bytes for _ in range(count)]

if sys.argv[1] == "reuse":
    reuse_large_blocks()
for _ in range(3):
    written(4)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    if sys.argv[2] == "written":
        written(4)
    else:
        reuse_large_blocks()
        written(1, 1 << 20)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str, repeated_call: str = "written") -> int:
    command = [sys.executable, "-c", _FAULTS, how, repeated_call]
    process = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 - our own words
    return int(process.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of glibc's allocator")
def test_blocks_of_megabytes_are_filled_again_instead_of_fetched_again() -> None:
    assert faults("reuse") * 10 < faults("as it is")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of glibc's allocator")
def test_each_further_call_uses_no_memory() -> None:
    assert faults("reuse", "called") < 1000  # a block of 32 MiB has 8,000 pages
