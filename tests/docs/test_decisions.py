"""Decisions are numbered without gaps or repetitions, and each title has its number."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parents[2] / "docs" / "decisions"


def test_each_number_is_taken_once() -> None:
    numbers = [path.name.partition("-")[0] for path in sorted(FOLDER.glob("*.md"))]
    assert numbers == [f"{number:04}" for number in range(len(numbers))]


def test_titles_have_the_number_of_the_file() -> None:
    for path in sorted(FOLDER.glob("*.md"))[1:]:
        title, *lines = path.read_text("utf-8").splitlines()
        assert title.startswith(f"# {path.name[:4]}: ")
        assert any(line.startswith("Status: ") for line in lines[:3])
