"""Rules for the source tree: folders have few modules, and no module name is used twice."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from pathlib import Path

import stratalog

CORE = Path(stratalog.__file__).parent
MODULES = [path.relative_to(CORE) for path in CORE.rglob("*.py") if path.name not in {"__init__.py", "__main__.py"}]
CONTRACTS = Path("testing", "contracts")  # a contract class may be in a module with the name of its component's module


def test_no_module_name_is_used_twice() -> None:
    counts = Counter(path.stem for path in MODULES if path.parent != CONTRACTS)
    assert [name for name, count in counts.items() if count > 1] == []


def test_a_module_with_a_command_is_named_after_it() -> None:
    for path in MODULES:
        if path.parts[0] != "cli" or path.stem == "app":
            continue
        is_command = "\n@click." in (CORE / path).read_text(encoding="utf-8")
        assert path.stem.endswith("_command") == is_command, path


def test_no_folder_has_more_than_twenty_modules() -> None:
    assert {
        str(folder): count for folder, count in Counter(path.parent for path in MODULES).items() if count > 20
    } == {}


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
