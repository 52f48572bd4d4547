from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("hatchling", reason="only the environment of the checks has hatchling")


def test_a_python_that_is_too_old_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("hatch_build", Path(__file__).parents[2] / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(sys, "version_info", (3, 10, 13))
    module.KernelBuildHook.initialize(SimpleNamespace(), "standard", {})  # a build would need the attributes of a hook
