"""``stratalog run`` with the settings of the Compose file serves every series of the dashboard and of the alerts."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from http.client import HTTPConnection
from pathlib import Path

import pytest

from own_command import running_command
from ports import free_ports
from stratalog import Record, open_engine
from stratalog.testing.s3 import LocalS3

DEPLOY = Path(__file__).parents[2] / "deploy"
WAIT_S = 60
SERIES = re.compile(r"\b(?:stratalog|process)_\w+")
ABSENT = {"stratalog_listener_failures_total"}  # served only after a listener failed


def get(port: int, path: str) -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def answered(process: subprocess.Popen[str], port: int, path: str, expected: str = "") -> str:
    """Repeat the request until the response contains ``expected``, and return the response.

    Raises:
        AssertionError: the process ended, or the response did not come in time.
    """
    deadline_s, text = time.perf_counter() + WAIT_S, ""
    while time.perf_counter() < deadline_s and process.poll() is None:
        try:
            status, text = get(port, path)
        except ConnectionRefusedError:
            continue
        if status == 200 and expected in text:
            return text
    raise AssertionError(f"{path} did not answer with {expected!r}: {text[:500]}")


@pytest.mark.long
def test_offload_moves_and_reports_all_segments(tmp_path: Path, local_s3: LocalS3, s3_tier: str) -> None:
    port, logs = free_ports(1)[0], tmp_path / "logs"
    with open_engine(logs) as engine:
        engine.create_topic("orders")
        log = engine.log("orders")
        log.append([Record(value=b"v")])
        log.roll()
    environment = os.environ | {
        "AWS_ACCESS_KEY_ID": str(local_s3.options["key"]),
        "AWS_SECRET_ACCESS_KEY": str(local_s3.options["secret"]),
        "STRATALOG_CONFIG": str(DEPLOY / "stratalog.toml"),
        "STRATALOG_LOG_DIRS": str(logs),
        "STRATALOG_TIER": s3_tier,
        "STRATALOG_TIER_CACHE_DIR": str(tmp_path / "cache"),
        "STRATALOG_PLUGINS_S3_ENDPOINT_URL": local_s3.endpoint_url,
        "STRATALOG_PLUGINS_METRICS_PORT": str(port),
        "STRATALOG_REMOTE_LOG_MANAGER_TASK_INTERVAL_MS": "50",
    }
    with running_command("run", env=environment, text=True) as process:
        text = answered(process, port, "/metrics", 'stratalog_log_tier_segments{partition="0",topic="orders"} 1.0')
        assert answered(process, port, "/healthy") == "well\n"
        process.terminate()
        assert process.wait(WAIT_S) == 0
    dashboard = json.loads((DEPLOY / "grafana/dashboards/stratalog.json").read_text("utf-8"))
    named_series = set(SERIES.findall(json.dumps([panel.get("targets", []) for panel in dashboard["panels"]])))
    rules = (DEPLOY / "prometheus" / "alerts.yml").read_text("utf-8")
    named_series |= set(SERIES.findall(" ".join(re.findall(r"(?:expr: |^ {10})(.*)", rules, re.MULTILINE))))
    served = set(re.findall(r"^(\w+)[{ ]", text, re.MULTILINE))
    assert len(named_series) > 30
    assert named_series - served == ABSENT
