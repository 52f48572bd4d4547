"""The dashboard and the alert rules use metrics and labels that exist, in expressions that Prometheus can parse."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from promql import PROCESS_METRICS, TARGET_LABELS, labels_left, selectors
from stratalog.engine.duties.engine_metrics import METRICS
from stratalog.model.metrics import MetricKind

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana/dashboards/stratalog.json").read_text("utf-8"))
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
RULES = [
    rule
    for group in yaml.safe_load((DEPLOY / "prometheus/alerts.yml").read_text("utf-8"))["groups"]
    for rule in group["rules"]
]
VARIABLES = {"$__rate_interval": "5m", "$instance": ".*", "$topic": ".*"}


def series() -> dict[str, set[str]]:
    """Return the labels of each series that the metrics service serves, by the name of the series."""
    labels_by_series = {name: set[str]() for name in PROCESS_METRICS}
    for metric in METRICS:
        if metric.kind is MetricKind.HISTOGRAM:
            labels_by_series[f"{metric.name}_bucket"] = {*metric.labels, "le"}
            labels_by_series |= {f"{metric.name}_{part}": set(metric.labels) for part in ("sum", "count")}
        else:
            labels_by_series[metric.name] = set(metric.labels)
    return {name: labels | TARGET_LABELS for name, labels in labels_by_series.items()} | {"up": TARGET_LABELS}


SERIES = series()


def check(expression: str) -> Any:
    """Parse an expression, check that its metrics and labels exist, and return the parsed expression."""
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    parsed = promql_parser.parse(expression)
    metric_selectors = list(selectors(parsed))
    assert metric_selectors
    for name, labels in metric_selectors:
        assert name in SERIES, name
        assert labels <= SERIES[name], (name, labels)
    return parsed


def names_of(parsed: Any) -> set[str]:
    return {name for name, _ in selectors(parsed)}


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: str(panel["title"]))
def test_a_panel_shows_what_exists(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        parsed = check(target["expr"])
        legend_labels = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        result_labels = labels_left(parsed)
        metric_labels = set.intersection(*(SERIES[name] for name in names_of(parsed)))
        assert legend_labels <= (metric_labels if result_labels is None else result_labels)


def test_panels_have_identities_and_places_of_their_own() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    occupied_cells = set[tuple[int, int]]()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & occupied_cells, panel["title"]
        occupied_cells |= cells


def test_the_variables_of_the_dashboard_are_labels_that_exist() -> None:
    variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert set(variables) == {"datasource", "instance", "topic"}
    for name in ("instance", "topic"):
        ((metric, label),) = re.findall(r"^label_values\((\w+), (\w+)\)$", variables[name]["query"])
        assert label == name
        assert label in SERIES[metric]
    used_names = set(re.findall(r"\$(\w+)", json.dumps([panel["targets"] for panel in PANELS])))
    assert used_names == {"__rate_interval", "instance", "topic"}


def test_each_metric_of_the_engine_is_on_the_dashboard_or_in_an_alert() -> None:
    shown_metrics = set[str]()
    for expression in (
        *(target["expr"] for panel in PANELS for target in panel["targets"]),
        *(r["expr"] for r in RULES),
    ):
        shown_metrics |= names_of(check(expression))
    places = {"stratalog_logs", "stratalog_log_leader_epoch", "stratalog_log_leading", "stratalog_tier_cache_items"}
    places |= {"stratalog_log_local_start_offset", "stratalog_log_tier_end_offset", "stratalog_duty_failures_total"}
    missing_metrics = {metric.name for metric in METRICS if not {metric.name, f"{metric.name}_bucket"} & shown_metrics}
    assert missing_metrics == places


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_an_alert_uses_existing_metrics_and_advises_what_to_do(rule: dict[str, Any]) -> None:
    assert set(rule) - {"for"} == {"alert", "expr", "labels", "annotations"}
    parsed = check(rule["expr"])
    assert isinstance(parsed, promql_parser.BinaryExpr)
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert set(rule["annotations"]) == {"summary", "action"}
    result_labels = labels_left(parsed)
    metric_labels = set.intersection(*(SERIES[name] for name in names_of(parsed)))
    for text in rule["annotations"].values():
        assert set(re.findall(r"\$labels\.(\w+)", text)) <= (metric_labels if result_labels is None else result_labels)
        assert re.sub(r"\{\{ \$(labels\.\w+|value( \| humanize(Percentage|Duration))?) \}\}", "", text).count("{") == 0


def test_each_figure_to_watch_has_an_alert() -> None:
    page = (ROOT / "docs" / "operating.md").read_text("utf-8")
    watched = set(re.findall(r"^\| `(stratalog_\w+)`", page, re.MULTILINE))
    assert len(watched) > 5
    assert watched <= {name for rule in RULES for name in names_of(check(rule["expr"]))}


@pytest.mark.parametrize(
    "wrong",
    [
        "stratalog_nothing > 1",
        'stratalog_logs{topic="x"} > 1',
        "sum by (kind) (stratalog_log_failed) > 1",
        "rate(stratalog_append_seconds[5m]) > 1",
    ],
)
def test_the_check_sees_a_wrong_name(wrong: str) -> None:
    with pytest.raises(AssertionError):
        check(wrong)
