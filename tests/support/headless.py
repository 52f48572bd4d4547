"""A headless Chromium, driven over the WebDriver protocol; only chromium and chromedriver are needed."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

AVAILABLE = shutil.which("chromedriver") is not None
_START_S = 30


class Browser:
    """One browser window. ``open`` loads a page; the other methods refer to this page."""

    def __init__(self, address: str) -> None:
        self._address = address
        options = {
            "args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
        }
        capabilities = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        answer = self._call("POST", "/session", {"capabilities": {"alwaysMatch": capabilities}})
        self._session = f"/session/{answer['sessionId']}"

    def _call(self, method: str, path: str, body: Mapping[str, object] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self._address}{path}", data=data, method=method)  # noqa: S310 - http alone
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - the same
            return json.load(answer)["value"]

    def size(self, width: int, height: int = 900) -> None:
        """Set the width of pages in CSS pixels. It may be below the smallest possible window width."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.command("Emulation.setDeviceMetricsOverride", metrics)

    def command(self, name: str, parameters: Mapping[str, object]) -> Any:
        """Run a command of the DevTools protocol."""
        return self._call("POST", f"{self._session}/goog/cdp/execute", {"cmd": name, "params": parameters})

    def open(self, url: str) -> None:
        """Open a page, and wait until it is loaded."""
        self._call("POST", f"{self._session}/url", {"url": url})

    def run(self, script: str) -> Any:
        """Run JavaScript as the body of a function, and return its result."""
        return self._call("POST", f"{self._session}/execute/sync", {"script": script, "args": []})

    def complaints(self) -> list[str]:
        """Return the browser's log messages since the last call: refused styles and scripts, failed requests."""
        log_entries = self._call("POST", f"{self._session}/se/log", {"type": "browser"})
        return [entry["message"] for entry in log_entries]

    def close(self) -> None:
        """Close the window."""
        self._call("DELETE", self._session)


@contextmanager
def browser() -> Iterator[Browser]:
    """Start a browser, and end it after the block."""
    driver = subprocess.Popen(
        ["chromedriver", "--port=0"],  # noqa: S607 - from the PATH
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert driver.stdout is not None
        port = next(
            line.rsplit(" ", 1)[1].strip(". \n") for line in driver.stdout if "on port" in line and "success" in line
        )
        session = Browser(f"http://127.0.0.1:{port}")
        try:
            yield session
        finally:
            session.close()
    finally:
        driver.terminate()
        driver.wait(_START_S)
        assert driver.stdout is not None
        driver.stdout.close()
