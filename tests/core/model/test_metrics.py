from __future__ import annotations

from stratalog.model.metrics import Metric, MetricKind, Sample, exposition

SIZE = Metric("stratalog_size_bytes", MetricKind.GAUGE, "How large\nit is.", ("topic", "place"))
RUNS = Metric("stratalog_runs_total", MetricKind.COUNTER, r"Runs \ tries.")


def test_samples_of_a_metric_stand_below_what_it_means() -> None:
    samples = [Sample(SIZE, ("a", "b"), 1), Sample(SIZE, ("a", "c"), 2.5), Sample(RUNS, (), 3)]
    assert exposition(samples).splitlines() == [
        r"# HELP stratalog_size_bytes How large\nit is.",
        "# TYPE stratalog_size_bytes gauge",
        'stratalog_size_bytes{topic="a",place="b"} 1',
        'stratalog_size_bytes{topic="a",place="c"} 2.5',
        r"# HELP stratalog_runs_total Runs \\ tries.",
        "# TYPE stratalog_runs_total counter",
        "stratalog_runs_total 3",
    ]


def test_what_would_end_a_label_is_escaped() -> None:
    text = exposition([Sample(SIZE, ('a"b', "c\\d\ne"), 1)])
    assert r'{topic="a\"b",place="c\\d\ne"} 1' in text


def test_nothing_is_no_text() -> None:
    assert exposition([]) == ""
