"""The script that prepares .venv: when it makes the environment, installs into it, or leaves it unchanged."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement

DEMO = {("--no-deps", "-e", "."), ("click", "moto", "s3fs", "-c", "scripts/demo-pins.txt")}
DEV = ("-e", ".[all]", "--group", "dev")
ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "_environment.py"
PROJECT = """\
[project]
dependencies = []
optional-dependencies = { cli = ["click"], s3 = ["s3fs"], local-s3 = ["moto", "stratalog[s3]"], arrow = ["pyarrow"] }
"""


def loaded(root: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the module of the script, for a checkout in ``root``."""
    spec = importlib.util.spec_from_file_location("environment_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    venv = root / ".venv"
    for name, value in {
        "ROOT": root,
        "VENV": venv,
        "MADE_FOR": venv / "made-for",
        "LOG": venv / "install.log",
    }.items():
        monkeypatch.setattr(module, name, value)
    return module


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the module of the script, for a checkout with only the build files.

    Its functions install nothing, but record their calls in ``done``.
    """
    module = loaded(tmp_path, monkeypatch)
    monkeypatch.setattr(module, "done", [], raising=False)
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "demo-pins.txt").write_text("")
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "hatch_build.py").write_text("one")
    monkeypatch.delenv("STRATALOG_NO_EXTENSIONS", raising=False)
    monkeypatch.setattr(module, "pip", lambda _, *arguments: module.done.append(arguments))
    monkeypatch.setattr(module, "make", noting_make(module))
    monkeypatch.setattr(module, "is_usable", lambda: "made" in module.done)
    return module


def noting_make(module: ModuleType) -> Callable[[], None]:
    def make() -> None:
        module.VENV.mkdir(exist_ok=True)
        module.done.append("made")

    return make


def test_the_first_run_makes_and_installs(checkout: ModuleType) -> None:
    assert checkout.main("demo") == 0
    assert checkout.done[0] == "made"
    assert set(checkout.done[1:]) == DEMO


def test_the_second_run_does_nothing(checkout: ModuleType) -> None:
    checkout.main("dev")
    checkout.done[:] = ["made"]
    assert checkout.main("dev") == 0
    assert checkout.main("demo") == 0  # dev includes all packages of demo
    assert checkout.done == ["made"]


def test_dev_needs_more_than_demo(checkout: ModuleType) -> None:
    checkout.main("demo")
    checkout.done[:] = ["made"]
    checkout.main("dev")
    assert checkout.done == ["made", ("pip>=25.1",), DEV]


def test_other_requirements_are_installed(checkout: ModuleType) -> None:
    checkout.main("demo")
    checkout.done[:] = ["made"]
    (checkout.ROOT / "pyproject.toml").write_text(PROJECT + "# another one")
    checkout.main("demo")
    assert set(checkout.done[1:]) == DEMO


def test_other_kernels_are_built(checkout: ModuleType) -> None:
    checkout.main("dev")
    for change in ("one", "two"):
        checkout.done[:] = ["made"]
        (checkout.ROOT / "core").mkdir(exist_ok=True)
        (checkout.ROOT / "core" / "kernel.pyx").write_text(change)
        checkout.main("dev")
        assert checkout.done[-1] == DEV


def test_kernels_are_built_again_when_they_are_wanted_again(
    checkout: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout.main("dev")
    for value in ("1", ""):
        checkout.done[:] = ["made"]
        monkeypatch.setenv("STRATALOG_NO_EXTENSIONS", value)
        checkout.main("dev")
        assert checkout.done[-1] == DEV


@pytest.mark.parametrize(
    ("failure", "code", "told"),
    [
        (KeyboardInterrupt(), 130, "run the command again"),
        (subprocess.CalledProcessError(1, ["python", "-m", "pip", "install"]), 1, "install.log"),
    ],
)
def test_an_installation_that_ended_early_is_repeated(
    checkout: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    failure: BaseException,
    code: int,
    told: str,
) -> None:
    def failing_pip(_: object, *arguments: str) -> None:
        if "-e" in arguments:
            raise failure

    with monkeypatch.context() as patch:
        patch.setattr(checkout, "pip", failing_pip)
        assert checkout.main("demo") == code
    assert told in capsys.readouterr().err
    checkout.done[:] = ["made"]
    assert checkout.main("demo") == 0
    assert set(checkout.done[1:]) == DEMO


def test_the_pins_of_the_demo_are_versions_that_the_project_accepts(monkeypatch: pytest.MonkeyPatch) -> None:
    module = loaded(ROOT, monkeypatch)
    pins = dict(line.split("==") for line in (ROOT / module.DEMO_PINS).read_text().splitlines())
    requirements = {requirement.name: requirement for requirement in map(Requirement, module.demo_packages())}
    assert requirements.keys() & pins.keys() == {"aiobotocore", "boto3", "fsspec", "moto", "s3fs"}
    for name in requirements.keys() & pins.keys():
        assert pins[name] in requirements[name].specifier


def test_two_installations_at_once_show_each_step_once(
    checkout: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with checkout.Progress("installing") as progress:
        for line in ("Downloading one", "Preparing editable metadata (pyproject.toml): started", "Downloading two"):
            progress.read(line)
    steps = ["installing", "downloading packages", "compiling the kernels"]
    assert capsys.readouterr().err == "".join(f"stratalog: {step}\n" for step in steps)


PIP_OUTPUT = """\
  Preparing editable metadata (pyproject.toml): started
  Preparing editable metadata (pyproject.toml): finished with status 'done'
Collecting lz4
  Downloading lz4-4.4.5-cp313-manylinux_2_17_x86_64.whl (1.4 MB)
Downloading odd
Installing collected packages: a, b

"""


def test_each_step_of_an_installation_is_one_line(checkout: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with checkout.Progress("installing") as progress:
        for line in PIP_OUTPUT.splitlines():
            progress.read(line.strip())
    steps = ["installing", "compiling the kernels", "downloading packages", "installing 2 packages"]
    assert capsys.readouterr().err == "".join(f"stratalog: {step}\n" for step in steps)


def test_a_terminal_shows_one_line_that_is_rewritten(
    checkout: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "48")
    with checkout.Progress("installing") as progress:
        for line in PIP_OUTPUT.splitlines():
            progress.read(line.strip())
    output = capsys.readouterr().err
    assert "\n" not in output
    _, *lines, last = output.split("\r\x1b[K")
    without_seconds = [re.sub(r"\(\d+ s\)", "(0 s)", line) for line in lines]
    assert list(dict.fromkeys(without_seconds)) == [
        "stratalog: installing (0 s) ",
        "stratalog: compiling the kernels (0 s) ",
        "stratalog: downloading packages (0 s) lz4 4.4.5 (1.4 MB)"[:47],
        "stratalog: downloading packages (0 s) odd",
        "stratalog: installing 2 packages (0 s) ",
    ]
    assert last == ""


@pytest.mark.parametrize(
    ("place", "wanted", "expected"),
    [("here", "", True), ("elsewhere", "", False), ("here", "some/python", False)],
)
def test_a_venv_is_used_where_it_was_made_and_for_the_python_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, wanted: str, *, expected: bool
) -> None:
    module = loaded(tmp_path / "here", monkeypatch)
    monkeypatch.setenv("PYTHON", wanted)
    python = module.VENV / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\necho /of/another/python\n")
    python.chmod(0o700)
    module.MADE_FOR.write_text(str(tmp_path / place))
    assert module.is_usable() is expected
