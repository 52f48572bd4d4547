"""Ownership of the fields of an open log: only methods of a field's class assign it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import stratalog

ROOT = Path(stratalog.__file__).parent
STATE = ROOT / "log" / "state"
MOST_FIELDS = 14
MOST_PARAMETERS = 8
NOT_OF_A_LOG = {
    "report",
    "self._report",
    "loaded_log",
    "self.loaded_log",
}  # other objects with a field of the same name


def classes(folder: Path) -> Iterator[tuple[Path, ast.ClassDef]]:
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                yield path, node


def is_value(found: ast.ClassDef) -> bool:
    """Return True for a class whose objects never change: a named tuple or a frozen data class."""
    texts = [ast.unparse(node) for node in (*found.bases, *found.decorator_list)]
    return any("NamedTuple" in text or "frozen=True" in text for text in texts)


def stored(node: ast.AST) -> Iterator[ast.Attribute]:
    """Yield the attributes that the code assigns or deletes."""
    for found in ast.walk(node):
        if isinstance(found, ast.Attribute) and not isinstance(found.ctx, ast.Load):
            yield found


def is_own(target: ast.Attribute) -> bool:
    return isinstance(target.value, ast.Name) and target.value.id in {"self", "cls"}


def fields(found: ast.ClassDef) -> set[str]:
    named = {
        node.target.id for node in found.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    return named | {target.attr for target in stored(found) if is_own(target)}


OWNED = {name for _, found in classes(STATE) if not is_value(found) for name in fields(found)}


def foreign_stores(path: Path) -> list[str]:
    """Return the assignments in a module to a field of an open log outside of the methods of the field's class."""
    return [
        f"{path.relative_to(ROOT)}:{target.lineno}: {ast.unparse(target)}"
        for target in stored(ast.parse(path.read_text()))
        if target.attr in OWNED and not is_own(target) and ast.unparse(target.value) not in NOT_OF_A_LOG
    ]


@pytest.mark.parametrize("room", ["log", "cleaning", "engine", "tier", "writing"])
def test_no_field_of_an_open_log_is_assigned_outside_its_class(room: str) -> None:
    assert [found for path in sorted((ROOT / room).rglob("*.py")) for found in foreign_stores(path)] == []


def test_the_check_finds_an_assignment_from_outside() -> None:
    assert {"segments", "recovery_point", "failure", "is_leader", "epochs", "dirty_start", "settings"} <= OWNED
    target = ast.parse("state.writes.segments = ()").body[0]
    assert [ast.unparse(found) for found in stored(target) if found.attr in OWNED and not is_own(found)] == [
        "state.writes.segments"
    ]


def test_no_class_that_changes_has_many_fields() -> None:
    counted = {
        f"{path.relative_to(ROOT)}:{found.name}": len(fields(found))
        for path, found in classes(ROOT / "log")
        if not is_value(found)
    }
    assert {name: count for name, count in counted.items() if count > MOST_FIELDS} == {}


def parameters(found: ast.ClassDef) -> int:
    """Return the number of parameters of a class's constructor, without ``self``."""
    made = (node for node in found.body if isinstance(node, ast.FunctionDef) and node.name == "__init__")
    counts = [len(node.args.posonlyargs) + len(node.args.args) + len(node.args.kwonlyargs) - 1 for node in made]
    return counts[0] if counts else 0


@pytest.mark.parametrize("room", ["log", "tier", "engine"])
def test_no_constructor_has_many_parameters(room: str) -> None:
    counted = {f"{path.relative_to(ROOT)}:{found.name}": parameters(found) for path, found in classes(ROOT / room)}
    assert max(counted.values()) > 0
    assert {name: count for name, count in counted.items() if count > MOST_PARAMETERS} == {}
