"""Refuse wording that readers must read twice: in docstrings, comments, texts, documents and names.

Each hit is printed. The exit code is 1 if there is any.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

_FOLDERS = ("core", "plugins", "examples", "scripts", "docs", "tests", "benchmarks")
_FIRST = re.compile(r"(What|How|Which|Whether|Who|Whoever|Whatever)\b")
_WORDS = re.compile(
    r"\b(anew|whoever|somebody|(?:is|are|be|was|were|been) told|(?:goes|go|going|went) on\b(?! Spark)|lets? go|looked at"
    r"|looks at|but for|comes? along|came along|said aloud|has it that|puts? right|hears? of|those who|takes? back)\b",
    re.IGNORECASE,
)
_MAY_BEGIN = re.compile(rf"[\"']\s*{_FIRST.pattern}|def test_")  # a docstring or a name of a test that may be refused
_NAMES = re.compile(r"test_(\w+_)?(told|tells?|lies|stands|says_so|nobody|somebody|anew|whoever)(_\w+)?")
_VAGUE = re.compile(r"\b(asked|chosen|found|given|gone|known|made|named|taken|told)\b")  # as the name of a variable
_EXCEPTIONS = ("scripts/check_words.py", "tests/scripts/test_check_words.py", "docs/decisions")


def texts(path: Path, content: str) -> Iterator[tuple[int, str]]:
    """Yield line number and text: of comments and strings in a Python file, of all lines in a Markdown file."""
    if path.suffix == ".md":
        yield from enumerate(content.splitlines(), 1)
        return
    tokens = tokenize.generate_tokens(io.StringIO(content).readline)
    yield from ((token.start[0], token.string) for token in tokens if token.type in {tokenize.COMMENT, tokenize.STRING})


def hits(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line number and the refused words of each hit in a file."""
    content = path.read_text(encoding="utf-8")
    if _WORDS.search(content):  # nearly no file has such words, and tokenize is slow
        for line, text in texts(path, content):
            yield from ((line, match[0]) for match in _WORDS.finditer(text))
    may_be_vague = "tests" not in path.parts and _VAGUE.search(content)
    if path.suffix == ".py" and (may_be_vague or _MAY_BEGIN.search(content)):
        for node in ast.walk(ast.parse(content)):
            if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if match := _FIRST.match(ast.get_docstring(node) or ""):
                yield node.body[0].lineno, match[0]
            if not isinstance(node, ast.Module) and (match := _NAMES.fullmatch(node.name)):
                yield node.lineno, match[0]
            if may_be_vague and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield from _vague_variables(node)


def _vague_variables(function: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line number and the name of each variable and parameter that does not say what it holds."""
    for node in ast.walk(function):
        if isinstance(node, ast.arg) and _VAGUE.fullmatch(node.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and _VAGUE.fullmatch(node.id):
            yield node.lineno, node.id


def main(root: Path) -> int:
    """Print the hits in the Python and Markdown files below ``root``; return 1 if there are any, else 0."""
    status = 0
    for file in sorted(file for name in _FOLDERS for file in (root / name).rglob("*.[pm][yd]")):
        place = str(file.relative_to(root))
        for line, words in () if place.startswith(_EXCEPTIONS) else hits(file):
            status = 1
            print(f"{place}:{line}: {words!r}")
    return status


if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve().parent.parent))
