"""The files of ``deploy`` refer only to paths, commands, settings and ports that exist."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from dockerfile_parse import DockerfileParser

from stratalog.cli.maintenance.run_command import run_engine
from stratalog.cli.own_commands import OWN_COMMANDS
from stratalog.config.settings_sources import plugin_values, read_settings
from stratalog.config.topic import TopicConfig
from stratalog.registry import Registry
from stratalog_telemetry.settings import MetricsSection

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
PORT = str(MetricsSection().port)


@pytest.fixture
def dockerfile(tmp_path: Path) -> DockerfileParser:
    return DockerfileParser(str(shutil.copy(DEPLOY / "Dockerfile", tmp_path / "Dockerfile")))


def given(dockerfile: DockerfileParser, instruction: str) -> list[str]:
    return [part["value"] for part in dockerfile.structure if part["instruction"] == instruction]


def test_the_image_runs_the_command_as_a_user_with_no_rights(dockerfile: DockerfileParser) -> None:
    (entry,), (arguments,) = given(dockerfile, "ENTRYPOINT"), given(dockerfile, "CMD")
    assert json.loads(entry) == ["stratalog"]
    assert json.loads(arguments) == ["run"]
    assert "run" in OWN_COMMANDS
    assert given(dockerfile, "USER") == ["10001"]
    assert given(dockerfile, "EXPOSE") == [PORT]
    assert f"http://127.0.0.1:{PORT}/healthy" in given(dockerfile, "HEALTHCHECK")[0]
    assert given(dockerfile, "STOPSIGNAL") == ["SIGTERM"]


def test_the_variables_of_the_image_are_settings(dockerfile: DockerfileParser) -> None:
    variables = {name: value for name, value in dockerfile.envs.items() if name.startswith("STRATALOG_")}
    assert len(variables) == 2
    settings = read_settings(None, variables)
    assert settings.engine.log_dirs == ("/data",)
    values = plugin_values(settings, Registry.of(settings, []).engine_settings())
    assert values == {"metrics": {"host": "0.0.0.0"}}  # noqa: S104 - the container's own network


def test_the_image_installs_extras_that_exist(dockerfile: DockerfileParser) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    (names,) = re.findall(r"\$\{wheel\}\[([\w,-]+)\]", dockerfile.content)
    assert set(names.split(",")) <= set(extras)
    assert "gateway" in names, "docs/running.md runs `stratalog serve` in the image"


def test_the_context_of_the_image_has_all_that_a_wheel_needs() -> None:
    included = {
        line[1:]
        for line in (DEPLOY / "Dockerfile.dockerignore").read_text("utf-8").splitlines()
        if line.startswith("!")
    }
    assert [name for name in included if not (ROOT / name).exists()] == []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    needed = {"pyproject.toml", "hatch_build.py", project["project"]["readme"], *project["project"]["license-files"]}
    needed |= {path.split("/")[0] for path in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]}
    assert needed == included


def test_the_settings_of_the_example_are_known() -> None:
    settings = read_settings(DEPLOY / "stratalog.toml", {})
    TopicConfig().replaced(settings.topic_defaults, "the example")
    plugin_settings = Registry.of(settings, []).engine_settings()
    assert {name: set(values) - plugin_settings[name] for name, values in settings.plugins.items()} == {"s3": set()}
    assert settings.engine.log_dirs == ("/data",)


def mounts() -> list[tuple[str, str]]:
    """Return the paths that compose.yaml mounts from its own folder, each with its path in the container."""
    paths = []
    for service in COMPOSE["services"].values():
        for mount in service.get("volumes", []):
            source, target = mount.removesuffix(":ro").split(":")
            if source.startswith("."):
                paths.append((source, target))
    return paths


def inside(path: str) -> Path:
    """Return the file in ``deploy`` that is mounted at a path of a container."""
    for source, target in mounts():
        if path == target or path.startswith(f"{target}/"):
            return DEPLOY / source / path.removeprefix(target).lstrip("/")
    raise AssertionError(f"{path} is not mounted")


def test_what_is_mounted_is_there() -> None:
    assert len(mounts()) == 4
    for source, _ in mounts():
        assert (DEPLOY / source).exists(), source
    for service in COMPOSE["services"].values():
        for mount in service.get("volumes", []):
            source = mount.split(":")[0]
            assert source.startswith("./") or source in COMPOSE["volumes"], source


def test_services_depend_on_services_that_exist() -> None:
    services = COMPOSE["services"]
    for name, service in services.items():
        assert ("image" in service) != ("build" in service), name
        dependencies = service.get("depends_on", {})
        assert set(dependencies) <= set(services), name
        if isinstance(dependencies, dict):
            for dependency, options in dependencies.items():
                if options["condition"] == "service_healthy":
                    assert "healthcheck" in services[dependency]
    build = services["stratalog"]["build"]
    assert (DEPLOY / build["context"]).resolve() == ROOT
    assert (ROOT / build["dockerfile"]).is_file()


def test_every_port_is_bound_to_this_machine() -> None:
    ports = [port for service in COMPOSE["services"].values() for port in service.get("ports", [])]
    assert len(ports) == 5
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []


def test_every_image_has_a_fixed_version() -> None:
    images = [service["image"] for service in COMPOSE["services"].values() if "image" in service]
    assert [image for image in images if ":" not in image or image.endswith(":latest")] == []


def test_the_engine_of_the_example_finds_its_settings_and_its_bucket() -> None:
    services = COMPOSE["services"]
    environment = services["stratalog"]["environment"]
    settings = tomllib.loads(inside(environment["STRATALOG_CONFIG"]).read_text("utf-8"))
    assert settings["plugins"]["s3"]["endpoint_url"] == "http://minio:9000"
    bucket = settings["tier"].removeprefix("s3://").split("/")[0]
    assert services["bucket"]["command"][-1] == f"store/{bucket}"
    user, password = (services["minio"]["environment"][f"MINIO_ROOT_{name}"] for name in ("USER", "PASSWORD"))
    assert environment["AWS_ACCESS_KEY_ID"] == user
    assert environment["AWS_SECRET_ACCESS_KEY"] == password
    assert services["bucket"]["environment"]["MC_HOST_store"] == f"http://{user}:{password}@minio:9000"
    mounted = {mount.split(":")[1] for mount in services["stratalog"]["volumes"]}
    assert {*settings["log.dirs"], settings["tier.cache.dir"]} <= mounted


def test_prometheus_and_grafana_find_their_files() -> None:
    prometheus = yaml.safe_load(inside("/etc/prometheus/prometheus.yml").read_text("utf-8"))
    assert [name for name in prometheus["rule_files"] if not inside(f"/etc/prometheus/{name}").is_file()] == []
    (job,) = prometheus["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"stratalog:{PORT}"]}]
    provisioning = "/etc/grafana/provisioning"
    (source,) = yaml.safe_load(inside(f"{provisioning}/datasources/prometheus.yml").read_text("utf-8"))["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load(inside(f"{provisioning}/dashboards/stratalog.yml").read_text("utf-8"))["providers"]
    assert list(inside(provider["options"]["path"]).glob("*.json"))


def unit() -> Any:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # names of systemd have capitals
    parser.read(DEPLOY / "stratalog.service")
    return parser


def test_the_unit_runs_a_command_that_exists() -> None:
    program, name, *options = shlex.split(unit()["Service"]["ExecStart"])
    assert Path(program).name == "stratalog"
    assert name == "run"
    known_options = {option for parameter in run_engine.params for option in parameter.opts}
    assert {option for option in options if option.startswith("-")} <= known_options


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    text = (DEPLOY / "stratalog.service").read_text("utf-8").replace("/opt/stratalog/bin/stratalog", sys.executable)
    path = tmp_path / "stratalog.service"
    path.write_text(text)
    ran = subprocess.run(  # noqa: S603 - systemd's own checker
        ["systemd-analyze", "verify", str(path)],  # noqa: S607 - wherever it is
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    messages = [line for line in ran.stderr.splitlines() if "stratalog" in line]
    assert (ran.returncode, messages) == (0, [])
