from __future__ import annotations

from pathlib import Path

import check_words
import pytest


@pytest.mark.parametrize(
    "text",
    [
        '"""What a log holds."""\n',
        "x = 1  # whoever reads it\n",
        'raise ValueError("the log goes on")\n',
        "def test_a_reader_is_told() -> None: ...\n",
        "def f(found: int) -> None: ...\n",
        "async def f() -> None: [known for known in ()]\n",
    ],
)
def test_wording_that_must_be_read_twice_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    (tmp_path / "core").mkdir()
    (tmp_path / "core" / "plain.py").write_text('"""Return the log. Continue if it is closed."""\n', encoding="utf-8")
    assert check_words.main(tmp_path) == 0
    (tmp_path / "core" / "riddle.py").write_text(text, encoding="utf-8")
    assert check_words.main(tmp_path) == 1
    assert "core/riddle.py:1" in capsys.readouterr().out


def test_prose_of_documents_is_checked(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text("The writer is told.\n", encoding="utf-8")
    assert check_words.main(tmp_path) == 1
