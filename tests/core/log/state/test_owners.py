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


def is_value(class_node: ast.ClassDef) -> bool:
    """Return True for a class whose objects never change: a named tuple or a frozen data class."""
    texts = [ast.unparse(node) for node in (*class_node.bases, *class_node.decorator_list)]
    return any("NamedTuple" in text or "frozen=True" in text for text in texts)


def stored(node: ast.AST) -> Iterator[ast.Attribute]:
    """Yield the attributes that the code assigns or deletes."""
    for attribute in ast.walk(node):
        if isinstance(attribute, ast.Attribute) and not isinstance(attribute.ctx, ast.Load):
            yield attribute


def is_own(target: ast.Attribute) -> bool:
    return isinstance(target.value, ast.Name) and target.value.id in {"self", "cls"}


def fields(class_node: ast.ClassDef) -> set[str]:
    annotated = {
        node.target.id
        for node in class_node.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    return annotated | {target.attr for target in stored(class_node) if is_own(target)}


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
    assert [store for path in sorted((ROOT / room).rglob("*.py")) for store in foreign_stores(path)] == []


def test_the_check_finds_an_assignment_from_outside() -> None:
    assert {"segments", "recovery_point", "failure", "is_leader", "epochs", "dirty_start", "settings"} <= OWNED
    target = ast.parse("state.writes.segments = ()").body[0]
    assert [
        ast.unparse(attribute) for attribute in stored(target) if attribute.attr in OWNED and not is_own(attribute)
    ] == ["state.writes.segments"]


def test_no_class_that_changes_has_many_fields() -> None:
    field_counts = {
        f"{path.relative_to(ROOT)}:{class_node.name}": len(fields(class_node))
        for path, class_node in classes(ROOT / "log")
        if not is_value(class_node)
    }
    assert {name: count for name, count in field_counts.items() if count > MOST_FIELDS} == {}


def parameters(class_node: ast.ClassDef) -> int:
    """Return the number of parameters of a class's constructor, without ``self``."""
    constructors = (node for node in class_node.body if isinstance(node, ast.FunctionDef) and node.name == "__init__")
    counts = [len(node.args.posonlyargs) + len(node.args.args) + len(node.args.kwonlyargs) - 1 for node in constructors]
    return counts[0] if counts else 0


@pytest.mark.parametrize("room", ["log", "tier", "engine"])
def test_no_constructor_has_many_parameters(room: str) -> None:
    parameter_counts = {
        f"{path.relative_to(ROOT)}:{class_node.name}": parameters(class_node)
        for path, class_node in classes(ROOT / room)
    }
    assert max(parameter_counts.values()) > 0
    assert {name: count for name, count in parameter_counts.items() if count > MOST_PARAMETERS} == {}
