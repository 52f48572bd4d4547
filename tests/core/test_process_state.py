"""No mutable state in modules: state belongs to an engine, a reader or a store, and a process may have several."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import stratalog

CORE = Path(stratalog.__file__).parent
FOLDERS = (CORE, CORE.parents[1] / "plugins")
CHANGING = {"bytearray", "deque", "dict", "list", "set", "Counter", "defaultdict", "Condition", "Event", "Lock", "RLock", "Thread"}  # fmt: skip
CHANGING |= {"ThreadPoolExecutor", "WeakSet", "WeakKeyDictionary", "WeakValueDictionary", "ContextVar", "local"}
ALLOWED = {"env/forks.py"}  # a fork concerns the whole process


def modules(containing: str = "") -> Iterator[tuple[str, ast.Module]]:
    """Yield name and syntax tree of each module of the core and of our plugins whose source contains a text.

    All trees at once would have millions of objects, which each search for garbage would visit.
    """
    for folder in FOLDERS:
        for path in folder.rglob("*.py"):
            source = path.read_text(encoding="utf-8")
            if containing in source:
                yield path.relative_to(folder).as_posix(), ast.parse(source)


def called(node: ast.stmt) -> str:
    """Return the name of the function whose result an assignment stores; "" for other statements."""
    value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
    if not isinstance(value, ast.Call):
        return ""
    function = value.func.value if isinstance(value.func, ast.Subscript) else value.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def test_no_module_and_no_class_keeps_locks_threads_or_collections() -> None:
    violations = [
        (name, node.lineno, called(node))
        for name, tree in modules()
        for body in [tree.body, *(node.body for node in tree.body if isinstance(node, ast.ClassDef))]
        for node in body
        if called(node) in CHANGING and name not in ALLOWED
    ]
    assert violations == []


def test_no_function_assigns_a_name_of_its_module() -> None:
    violations = [
        (name, node.lineno)
        for name, tree in modules(containing="global")
        for node in ast.walk(tree)
        if isinstance(node, ast.Global)
    ]
    assert violations == []
