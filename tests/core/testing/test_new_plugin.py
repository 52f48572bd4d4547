"""The skeleton of a plugin can be installed, and its tests fail with messages that say which code is missing."""

from __future__ import annotations

import inspect
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import pytest

from stratalog.cli.app import run
from stratalog.cli.new_plugin_command import new
from stratalog.errors import ConfigError
from stratalog.registry.plugin_check import check_plugin
from stratalog.testing.new_plugin import kind_words, new_plugin


@pytest.mark.parametrize("kind", kind_words())
def test_a_skeleton_of_each_kind_is_well_formed(kind: str, tmp_path: Path) -> None:
    _, module, _ = new_plugin(kind, "mine", tmp_path)
    assert check_plugin(str(module)) == []


@pytest.mark.parametrize("kind", kind_words())
def test_a_skeleton_imports_the_types_of_its_signatures(kind: str, tmp_path: Path) -> None:
    _, path, _ = new_plugin(kind, "mine", tmp_path)
    module = runpy.run_path(str(path))
    classes = [value for value in module.values() if isinstance(value, type) and value.__module__ == "<run_path>"]
    methods = [method for part in classes for method in vars(part).values() if inspect.isfunction(method)]
    for method in methods:
        get_type_hints(method)
    assert methods


@pytest.mark.parametrize(
    ("kind", "name", "told"),
    [
        ("codek", "mine", "the kinds are record-format, codec"),
        ("codec", "Mine", "is not of the form"),
        ("codec", "zstd", "plugin formats already offers the codec 'zstd': choose another name"),
    ],
)
def test_a_wrong_kind_or_name_is_refused(kind: str, name: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=told):
        new_plugin(kind, name, tmp_path)


def test_the_help_of_the_command_names_all_kinds() -> None:
    assert new.help is not None
    _, _, listed_kinds = new.help.partition("KIND is ")
    assert [kind for kind in kind_words() if kind not in listed_kinds] == []


def test_a_folder_that_exists_is_not_overwritten(tmp_path: Path) -> None:
    new_plugin("codec", "mine", tmp_path)
    with pytest.raises(ConfigError, match="exists already"):
        new_plugin("service", "mine", tmp_path)


def test_the_command_shows_the_next_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for options, folder in ((["--into", "my plugins"], "'./my plugins/stratalog-mine'"), ([], "./stratalog-mine")):
        assert run(["new-plugin", "codec", "mine", *options]) == 0
        text = " ".join(capsys.readouterr().err.split())
        assert text == f"write the methods, run pip install {folder}, then stratalog check-plugin mine --contracts"


@pytest.mark.long
@pytest.mark.parametrize("kind", kind_words())
def test_an_installed_skeleton_is_found_and_its_tests_name_the_methods_to_write(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="a distribution is built without a network by hatchling alone")
    project, _, tests = new_plugin(kind, "mine", tmp_path)
    site = tmp_path / "site"
    install = ["-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index", "--target", str(site)]
    subprocess.run([sys.executable, *install, str(project.parent)], check=True, capture_output=True)  # noqa: S603 - our own skeleton
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    checked = subprocess.run(
        [sys.executable, "-m", "stratalog", "check-plugin", "mine"], env=environment, capture_output=True, check=False
    )
    assert checked.returncode == 0
    ran = subprocess.run(  # noqa: S603 - our own skeleton
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests)],
        env=environment,
        cwd=tests.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1
    assert "NotImplementedError: write " in ran.stdout
