"""The examples of the page on recovery run with the results that the page describes."""

from __future__ import annotations

import re
from pathlib import Path

import stratalog

PAGE = (Path(__file__).parents[2] / "docs" / "recovery-from-the-bucket.md").read_text(encoding="utf-8")


def test_the_examples_run(tmp_path: Path) -> None:
    uri = tmp_path.as_uri() + "/bucket"
    (tmp_path / "bucket").mkdir()
    with stratalog.open_engine(tmp_path / "lost", tier=uri) as engine:
        engine.create_topic("orders")
        engine.log("orders", 0).append([stratalog.Record(value=b"x")])
        engine.log("orders", 0).roll()
        engine.offload()
    examples = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(examples) == 3
    for example in examples:
        code = example.replace("s3://bucket/prefix", uri).replace('"empty"', repr(str(tmp_path / "empty")))
        exec(code.replace('"directory"', repr(str(tmp_path / "new"))), {"stratalog": stratalog})  # noqa: S102 - our page
