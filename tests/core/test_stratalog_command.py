"""The script ``stratalog``: its exit code if it is interrupted while it loads."""

from __future__ import annotations

import subprocess
import sys

import pytest

_INTERRUPTED = """
import sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
from stratalog_command import main
main()
"""


@pytest.mark.parametrize("module", ["stratalog", "stratalog.registry", "stratalog.cli.app"])
def test_ctrl_c_while_it_loads_is_no_traceback(module: str) -> None:
    script = [sys.executable, "-c", _INTERRUPTED.format(module=module), "--version"]
    ended = subprocess.run(script, capture_output=True, text=True, check=False)  # noqa: S603 - our own interpreter and text
    assert (ended.returncode, ended.stderr) == (130, "interrupted\n")


def test_the_script_runs_the_command_line() -> None:
    script = [sys.executable, "-c", "from stratalog_command import main; main()", "--version"]
    ended = subprocess.run(script, capture_output=True, text=True, check=True)  # noqa: S603 - the same
    assert ended.stdout.startswith("stratalog, version")
