"""The commands in the blocks of each page run one after the other, as a reader would copy them."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from stratalog import Engine, Record, TopicPartition, open_engine
from stratalog.cli.app import run

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
OPTION = re.compile(r" \[(--.*?)\]")
PAGES = {  # number of commands on each page
    "docs/archive.md": 4,
    "docs/cleaning.md": 3,
    "docs/encryption.md": 1,
    "docs/notebooks.md": 2,
    "docs/object-stores.md": 2,
    "docs/operating.md": 1,
    "docs/recovery-from-the-bucket.md": 3,
    "docs/reference/dump.md": 4,
    "docs/tier.md": 7,
    "docs/verify.md": 4,
}
ELSEWHERE = {"docs/spark.md", "docs/tutorial.md"}  # other test files run the commands of these pages
EXAMPLES = {
    "examples/arrow_latest/README.md",
    "examples/bloom_index/README.md",
    "examples/own_codec/README.md",
    "examples/prefix_budget/README.md",
    "examples/sqlite_store/README.md",
    "examples/ttl_header/README.md",
}  # the commands of these pages need the installed example, and are not run
# Commands that run until a signal, and the slow bench: tests/core/cli and tests/plugins run them.
LONG = (" --follow", "stratalog bench ", "stratalog console ", "stratalog run ", "stratalog serve ")
PLACES = {  # texts of the pages, and their replacements; {} is the folder of the test
    "s3://archive/cluster-1": "file://{}/archive",
    "s3://bucket/prefix": "file://{}/bucket",
    "s3://...": "file://{}/bucket",
    "URI DIR": "file://{}/bucket restored",
    "URI": "file://{}/bucket",
    "/var/lib/kafka/data": "kafka",
    "/var/lib/stratalog/data": "data",
    "/disk1/kafka /disk2/kafka": "kafka",
    "/data/": "",
    "orders-0:1000": "orders-0:1",
    "DIRECTORY": "data",
    "TOPIC": "orders",
    " T]": " orders]",
    "OLD=NEW": "orders=copies",
}


def commands(page: str) -> list[str]:
    """Return the commands in the blocks of a page, except those that contain a text of ``LONG``."""
    lines = [line for text in blocks(page, "") for line in text.splitlines()]
    return [line for line in lines if line.startswith("stratalog ") and not any(name in line for name in LONG)]


def blocks(page: str, language: str) -> list[str]:
    matches = BLOCK.finditer((ROOT / page).read_text(encoding="utf-8"))
    return [block["text"] for block in matches if block["language"] == language]


def with_places(text: str, place: Path) -> str:
    """Replace the directories, URIs and topics of the page by those of this test."""
    for name, replacement in PLACES.items():
        text = text.replace(name, replacement.format(place))
    return text


def fill(engine: Engine, topic: str) -> None:
    log = engine.log(topic)
    for customer in ("customer-16", "customer-17"):
        value = json.dumps({"customer": customer, "amount": 3}).encode()
        log.append([Record(key=customer.encode(), value=value)])
        log.roll()


@pytest.fixture
def place(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make and return a folder with the data that the commands need.

    It has an engine's directory and its tier, a broker's directory, and the files that the page about ``dump`` shows.
    """
    monkeypatch.chdir(tmp_path)
    for folder in ("archive", "bucket", "disk"):
        (tmp_path / folder).mkdir()
    uri = (tmp_path / "bucket").as_uri()
    with open_engine("data", tier=uri) as engine:
        for topic in ("orders", "sessions"):
            engine.create_topic(topic)
            fill(engine, topic)
        engine.offload()
    with open_engine("kafka") as engine:
        engine.create_topic("orders")
        fill(engine, "orders")
        if "__consumer_offsets-12" in (ROOT / page).read_text(encoding="utf-8"):
            engine.alter_group_offsets("group-26", {TopicPartition("orders", 0): 1})
    shutil.copy("kafka/orders-0/00000000000000000000.log", tmp_path)
    segment_object = next((tmp_path / "bucket").rglob("00000000000000000000-*.seg"))
    shutil.copy(segment_object, tmp_path / "00000000000000000000-0-ed66a171f09843a2b26df2bbedfafbbf.seg")
    (tmp_path / "stratalog.toml").write_text(f'log.dirs = ["data"]\ntier = "{uri}"\n')
    monkeypatch.setenv("STRATALOG_CONFIG", "stratalog.toml")
    return tmp_path


def variants(line: str) -> list[str]:
    """Return the command without its optional options in brackets, and then once with each of these options.

    Each variant with an option writes to new directories.
    """
    bare_command = OPTION.sub("", line)
    with_options = [f"{bare_command} {option}" for option in OPTION.findall(line)]
    separate_variants = [
        re.sub(r"\b(restored|empty)\b", rf"\g<0>-{number}", text) for number, text in enumerate(with_options)
    ]
    return [bare_command, *separate_variants]


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.usefixtures("kafkas_state_partitions")
def test_the_commands_of_a_page_run(page: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = commands(page)
    assert len(lines) == PAGES[page]
    for settings in blocks(page, "toml"):
        if "log.dirs" in settings:
            (place / "stratalog.toml").write_text(with_places(settings, place))
    for line in lines:
        for command in variants(with_places(line, place).partition(" #")[0].rstrip()):
            # reports high costs, because the segments are tiny
            expected_code = 1 if command.startswith("stratalog tier cost file:") else 0
            assert run(shlex.split(command)[1:]) == expected_code, f"{command}\n{capsys.readouterr().err}"


def test_each_page_with_commands_is_run_by_a_test() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    names = [str(page.relative_to(ROOT)) for page in pages]
    assert {name for name in names if commands(name)} == {*PAGES, *ELSEWHERE, *EXAMPLES}
