"""Rules for the source tree: folders have few modules, and no module name is used twice."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from pathlib import Path

import stratalog

CORE = Path(stratalog.__file__).parent
NAMED_OTHERWISE = {"cli", "testing"}  # folders whose modules have the names of commands or protocols
MODULES = [path.relative_to(CORE) for path in CORE.rglob("*.py") if path.name not in {"__init__.py", "__main__.py"}]
FOUND = [path for path in MODULES if path.parts[0] not in NAMED_OTHERWISE]


def test_no_module_name_is_used_twice() -> None:
    assert [name for name, count in Counter(path.stem for path in FOUND).items() if count > 1] == []


def test_no_folder_has_more_than_twenty_modules() -> None:
    assert {str(folder): count for folder, count in Counter(path.parent for path in FOUND).items() if count > 20} == {}


def test_no_two_public_classes_share_a_name() -> None:
    homes = defaultdict(set)
    for path in MODULES:
        for node in ast.parse((CORE / path).read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].add(str(path))
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}


def test_the_folders_of_the_tests_are_rooms() -> None:
    tests = Path(__file__).parent
    folders = {path.parent.relative_to(tests) for path in tests.rglob("test_*.py")}
    assert [str(folder) for folder in sorted(folders) if not (CORE / folder).is_dir()] == []
