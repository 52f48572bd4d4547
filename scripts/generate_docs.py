"""Write the generated pages, tables and pictures of the documentation.

The pages are the references of settings, metrics, errors and commands.

Usage: generate_docs.py [--check]. With --check, no file is written: stale files are listed, and the exit code is 1 if
there are any.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import logging
import re
import sys
import tempfile
import tomllib
import types
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import benchmark_results
import call_paths
import click
import error_examples
import pictures

import stratalog_formats
import stratalog_gateway
import stratalog_s3
import stratalog_telemetry
from stratalog import errors
from stratalog.cli.app import app
from stratalog.cli.own_commands import OWN_COMMANDS
from stratalog.config.engine_settings import EngineConfig, Limits
from stratalog.config.keys import LONG_MAX, Key, Section
from stratalog.config.settings_sources import CONFIG_VARIABLE, ENVIRONMENT_PREFIX
from stratalog.config.topic import TopicConfig
from stratalog.engine.duties.engine_metrics import METRICS
from stratalog.spi import Provider, hooks
from stratalog_formats.kernels.dispatch import KERNELS
from stratalog_gateway.handlers.dispatch import APIS
from stratalog_gateway.serve_command import serve
from stratalog_spark.commands.commands import spark

ROOT: Final = Path(__file__).resolve().parent.parent
SETTINGS_PAGE: Final = Path("docs/reference/settings.md")
METRICS_PAGE: Final = Path("docs/reference/metrics.md")
ERRORS_PAGE: Final = Path("docs/reference/errors.md")
ARCHITECTURE_PAGE: Final = Path("docs/architecture.md")
GATEWAY_PAGE: Final = Path("docs/gateway.md")
PLUGINS_PAGE: Final = Path("docs/plugins.md")
IMAGES: Final = Path("docs/images")
PERFORMANCE_PAGE: Final = Path("docs/performance.md")
README: Final = Path("README.md")
CLI_PAGE: Final = Path("docs/reference/cli.md")
_BLOCK: Final = re.compile(
    r"(<!-- begin (?P<name>\w+): scripts/generate_docs.py -->\n)(?P<text>.*?)(<!-- end (?P=name) -->)", re.DOTALL
)
_TYPES: Final = {
    bool: "true or false",
    int: "integer",
    float: "number",
    str: "text",
    tuple: "list",
    dict: "table",
    int | str: "integer or text",
}

_SETTINGS_INTRO: Final = f"""\
# Settings

Generated from the code by `scripts/generate_docs.py`; edit the sentences there.

Settings come from a TOML file or a mapping (`open_engine(config=...)`), then from the environment, then from the call;
later ones win. An unknown name, a value out of bounds and a setting that is given twice are errors that say where.
Without `config`, a program reads the file that `{CONFIG_VARIABLE}` names. Commands read the file of `--config`, then that of
`{CONFIG_VARIABLE}`, then `stratalog.toml` in the working directory.

```toml
tier = "s3://bucket/prefix"
log.dirs = ["data/one", "data/two"]

[limits]
open.files = 256

[topic_defaults]
"retention.ms" = 86_400_000

[plugins]
block = ["acme"]

[plugins.s3]
# settings of the provider s3: below for those that come with stratalog, for others in their plugin's documents
"part.bytes" = 67_108_864
```

Dots and tables are the same: `log.dirs` above is `dirs` under `[log]`. In the environment a setting has the prefix
`{ENVIRONMENT_PREFIX}` and underscores for dots: `{ENVIRONMENT_PREFIX}LOG_DIRS=data/one,data/two`. Settings of plugins have the plugin's name in it:
`{ENVIRONMENT_PREFIX}PLUGINS_S3_REGION=eu-west-1`. A list may be written
as text with commas. A name that extends another one needs quotes in TOML: `"tier.cache.dir"` beside `tier`. Numbers without other bounds are integers of 64 bits.
"""
_SECTION_INTROS: Final[dict[type[Section], str]] = {
    EngineConfig: "At the top of the file, or in the environment.",
    Limits: "Under `[limits]` without the first word, or in the environment.",
    TopicConfig: (
        "Given to `create_topic`, or for all topics under `[topic_defaults]`. Those that Kafka has carry Kafka's names, "
        "defaults and bounds. Topics found in a directory without settings of ours keep everything (`retention.ms=-1`); "
        "where a tier is given, `remote.storage.enable` defaults to true."
    ),
}


def settings_page() -> str:
    """Return the page with the reference of all settings."""
    parts = [_SETTINGS_INTRO]
    plugins = ((section, f"Under `[plugins.{provider}]`.") for provider, section in provider_sections())
    for section, intro in (*_SECTION_INTROS.items(), *plugins):
        table = _table(["Setting", "Type", "Default", "Allowed", "Meaning"], _rows(section))
        parts += [f"## {section.title}", intro, table]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def provider_sections() -> list[tuple[str, type[Section]]]:
    """Return the name and the settings section of each bundled provider with engine settings, sorted by name."""
    providers: tuple[Provider[Any], ...] = (
        *stratalog_formats.stratalog_tier_layouts(),
        *stratalog_s3.stratalog_object_stores(),
        *stratalog_gateway.stratalog_services(),
        *stratalog_telemetry.stratalog_services(),
    )
    section_by_provider = {provider.name: provider.engine_section for provider in providers}
    return sorted((name, section) for name, section in section_by_provider.items() if section is not None)


def _rows(section: type[Section]) -> list[list[str]]:
    hints = typing.get_type_hints(section)
    fields = [field for field in dataclasses.fields(section) if field.metadata]  # the others are no settings
    return [
        [f"`{setting.name}`", _type(hints[field.name]), _default(setting), _allowed_values(setting), setting.doc]
        for field, setting in zip(fields, section.keys().values(), strict=True)
    ]


def _type(hint: Any) -> str:
    if typing.get_origin(hint) in {types.UnionType, typing.Union}:
        hint = next(choice for choice in typing.get_args(hint) if choice is not types.NoneType)
    return _TYPES[typing.get_origin(hint) or hint]


def _default(setting: Key) -> str:
    value = setting.default() if callable(setting.default) else setting.default
    if value is None or value in ((), {}, ""):
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{','.join(value) if isinstance(value, tuple) else value}`"


def _allowed_values(setting: Key) -> str:
    words = [f"`{choice}`" for choice in setting.choices if choice]
    bounds = ((setting.at_least, "≥"), (setting.at_most, "≤"))
    words += [f"{sign} {bound}" for bound, sign in bounds if bound is not None and bound != LONG_MAX]
    return ", ".join(words)


_METRICS_INTRO: Final = """\
# Metrics

Generated from the code by `scripts/generate_docs.py`; edit the sentences there.

`engine.metrics()` returns all figures as of now. It takes no lock that an append would wait for, opens no file and asks no
store. Counters begin at 0 when the engine opens. Figures of a tier are there only with a tier. Rates are the collector's to
make: `rate(stratalog_log_end_offset[1m])` is the records a second of a log.

Histograms are those of `engine.latencies()`: buckets from 10 microseconds to 30 seconds. They are measured from the call of
`engine.measure_latencies()` on, which service `metrics` makes ([running](../running.md)).
"""


def metrics_page() -> str:
    """Return the page with the reference of all metrics."""
    rows = [
        [
            f"`{metric.name}`",
            metric.kind,
            ", ".join(metric.labels) or "none",
            metric.doc,
            f"`{metric.kafka}`" if metric.kafka else "",
        ]
        for metric in METRICS
    ]
    return f"{_METRICS_INTRO}\n{_table(['Metric', 'Kind', 'Labels', 'Meaning', 'In Kafka'], rows)}\n"


_ERRORS_INTRO: Final = """\
# Errors

Generated from the code by `scripts/generate_docs.py`; edit the docstrings and the advice there.

All errors are classes of `stratalog.errors`, below `StorageError`. A text has the problem, the place and, after the last
colon, the advice. A retriable error can go away when the same call is repeated. The code is that of Kafka's protocol for
the same condition. Commands print the text and end with exit code 2; with `--json` they print an object with `error` and
`message`. The examples are the texts of real errors, with `data` as the folder."""


@functools.cache
def errors_page() -> str:
    """Return the page with the reference of all error classes. Errors with an example are raised to get their texts."""
    kinds: list[type[errors.StorageError]] = [
        getattr(errors, name) for name in sorted(errors.__all__) if name.endswith("Error")
    ]
    return "\n\n".join([_ERRORS_INTRO, *map(_error_section, kinds)]) + "\n"


def _error_section(kind: type[errors.StorageError]) -> str:
    base = kind.__mro__[1].__name__
    facts = [f"below `{base}`" if base != "Exception" else "base of all errors"]
    facts += ["retriable"] if kind.retriable else []
    facts += [f"Kafka's code {kind.kafka_code}"] if kind.kafka_code >= 0 else []
    lines = [f"## {kind.__name__}", f"{inspect.getdoc(kind)}".replace("``", "`"), f"*{', '.join(facts)}*"]
    if kind.__name__ in error_examples.EXAMPLES:
        with tempfile.TemporaryDirectory() as folder:
            lines.append(f"```\n{error_examples.text_of(kind.__name__, Path(folder))}\n```")
    return "\n\n".join(lines)


_CLI_INTRO: Final = """\
# Command line

Generated from the code by `scripts/generate_docs.py`; edit the help texts there.

Every command has `--help`, and `--json` for machines. The exit code is 0 (success), 1 (the command found a problem) or
2 (the command could not run)."""


def cli_page() -> str:
    """Return the page with the help of every command."""
    commands: dict[str, click.Command] = {name: command.load() for name, command in OWN_COMMANDS.items()}
    top = click.Group("stratalog", commands={**commands, "serve": serve, "spark": spark})
    return "\n\n".join([_CLI_INTRO, *_command_sections(top, "stratalog", 1)]) + "\n"


def _command_sections(group: click.Group, path: str, depth: int) -> Iterator[str]:
    for name, command in sorted(group.commands.items()):
        context = click.Context(command, info_name=f"{path} {name}", terminal_width=80, **app.context_settings)
        text = command.get_help(context).strip()
        yield f"{'#' * (depth + 1)} `{path} {name}`\n\n```text\n{text}\n```"
        if isinstance(command, click.Group):
            yield from _command_sections(command, f"{path} {name}", depth + 1)


def hooks_table() -> str:
    """Return a table of all hooks with their arguments, results and meaning."""
    rows = []
    for name, spec in vars(hooks).items():
        if name.startswith(f"{hooks.PROJECT}_"):
            summary = " ".join((inspect.getdoc(spec) or "").split())
            rows.append([f"`{name}`", _arguments(spec), _returns(spec), summary])
    return _table(["Hook", "Arguments", "Returns", "Meaning"], rows)


def gateway_table() -> str:
    """Return a table of the APIs that the gateway announces, with their versions."""
    rows = [[api.name, f"{api.first} to {api.last}"] for api in sorted(APIS.values())]
    return _table(["API", "Versions"], rows)


def _arguments(spec: Any) -> str:
    parameters = inspect.signature(spec, eval_str=True).parameters.values()
    return ", ".join(f"`{parameter.name}: {_event(parameter.annotation)}`" for parameter in parameters) or "none"


def _event(kind: type[Any]) -> str:
    return f"{kind.__name__}({', '.join(field.name for field in dataclasses.fields(kind))})"


def _returns(spec: Any) -> str:
    result_type = typing.get_type_hints(spec)["return"]
    (item,) = typing.get_args(result_type) or (None,)
    if item is None:
        return "nothing"
    component = typing.get_args(item)
    name = getattr(component[0], "__name__", None) or component[0].__origin__.__name__ if component else item.__name__
    return f"`Provider[{name}]` values" if component else f"`{name}` values"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def rooms_picture() -> str:
    """Return a picture of the rooms (packages) of the core, from the layers that import-linter checks."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    layers = next(contract["layers"] for contract in contracts if contract.get("containers") == ["stratalog"])
    return pictures.stack("The rooms of the core, from top to bottom", [layer.replace(" | ", ", ") for layer in layers])


@functools.cache
def path_pictures() -> tuple[dict[Path, str], dict[str, str]]:
    """Return pictures of the paths of calls by file, and their descriptions by the name of the block in the page.

    Return nothing if the compiled kernels are missing: the page shows the calls with them, and pure Python calls other
    functions.
    """
    if KERNELS.select is None:
        return {}, {}
    with tempfile.TemporaryDirectory(prefix="call-paths-") as scratch:
        calls_by_path = call_paths.paths(Path(scratch))
    files, blocks = dict[Path, str](), dict[str, str]()
    for name, calls in calls_by_path.items():
        title = f"The main functions that {_article(name)} calls"
        boxes, steps = call_paths.picture(calls, call_paths.STEPS[name])
        file = IMAGES / f"path-of-{name.replace(' ', '-')}.svg"
        files[file] = pictures.tree(title, boxes)
        blocks[name.replace(" ", "_")] = "\n".join([f"![{title}](images/{file.name})", "", *steps])
    return files, blocks


def _article(name: str) -> str:
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def performance_blocks() -> dict[str, str]:
    """Return the tables of stored benchmark results, by the name of the block in the page."""
    return {
        "ratios": _table(
            ["Work", "Compared with", "Wall time", "Processor time", "Command"], benchmark_results.summary()
        ),
        "verdicts": _table(["Target", "Case", "Measured", "Bound", "Reached"], benchmark_results.verdicts()),
        "machines": _table(["Benchmark", "Machine", "Python", "Load"], benchmark_results.machines()),
    }


def replace_blocks(text: str, blocks: dict[str, str]) -> str:
    """Return ``text`` with the contents of each marked block in ``blocks`` replaced; other blocks do not change."""

    def block(match: re.Match[str]) -> str:
        content = blocks.get(match["name"])
        return match[0] if content is None else f"{match[1]}{content}\n{match[4]}"

    return _BLOCK.sub(block, text)


def pages(root: Path) -> dict[Path, str]:
    """Return the content of each generated page and picture, by its path relative to the root."""
    architecture = (ROOT / ARCHITECTURE_PAGE).read_text(encoding="utf-8")
    plugins = (root / PLUGINS_PAGE).read_text(encoding="utf-8")
    path_files, path_blocks = path_pictures()
    performance = performance_blocks()
    return {
        **{IMAGES / f"{name}.svg": draw() for name, draw in pictures.DRAWN.items()},
        IMAGES / "rooms.svg": rooms_picture(),
        **path_files,
        **{IMAGES / f"{name}.svg": chart for name, chart in benchmark_results.charts().items()},
        SETTINGS_PAGE: settings_page(),
        METRICS_PAGE: metrics_page(),
        ERRORS_PAGE: errors_page(),
        CLI_PAGE: cli_page(),
        ARCHITECTURE_PAGE: replace_blocks(architecture, path_blocks),
        GATEWAY_PAGE: replace_blocks((ROOT / GATEWAY_PAGE).read_text(encoding="utf-8"), {"apis": gateway_table()}),
        PLUGINS_PAGE: replace_blocks(plugins, {"hooks": hooks_table()}),
        PERFORMANCE_PAGE: replace_blocks((ROOT / PERFORMANCE_PAGE).read_text(encoding="utf-8"), performance),
        README: replace_blocks((ROOT / README).read_text(encoding="utf-8"), performance),
    }


def main(arguments: Sequence[str], root: Path = ROOT) -> int:
    """Write the stale pages and pictures, or with ``--check`` only print their paths.

    Return the exit code: 1 if ``--check`` finds a stale file, else 0.
    """
    logging.getLogger("stratalog").addHandler(logging.NullHandler())  # the examples of errors log warnings
    stale = 0
    for path, text in pages(root).items():
        file = root / path
        if file.is_file() and file.read_text(encoding="utf-8") == text:
            continue
        stale += 1
        if "--check" in arguments:
            print(f"{path} is stale: run scripts/generate_docs.py")
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
            print(f"{path} written")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
