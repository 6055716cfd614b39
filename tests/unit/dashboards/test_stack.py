"""``examples/grafana``: checked as far as that goes without Docker."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from dashboards import ids
from support.requires import require

if TYPE_CHECKING:
    from collections.abc import Iterator

TOP = Path(__file__).parents[3]
STACK = TOP / "examples" / "grafana"


def read(name: str) -> Any:
    return yaml.safe_load((STACK / name).read_text())


@pytest.fixture
def services() -> dict[str, Any]:
    return dict(read("compose.yaml")["services"])


def mounts(services: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    for name, service in services.items():
        for volume in service.get("volumes", ()):
            source, target, *_ = volume.split(":")
            yield name, source, target


def test_it_has_what_the_readme_says(services: dict[str, Any]) -> None:
    assert set(services) == {"demo", "prometheus", "collector", "tempo", "grafana"}


def test_every_image_is_pinned_to_a_version(services: dict[str, Any]) -> None:
    images = [one["image"] for one in services.values() if "image" in one]
    assert len(images) == 4
    for image in images:
        _, _, version = image.partition(":")
        assert version.lstrip("v")[0].isdigit(), image


def test_everything_that_is_mounted_is_there(services: dict[str, Any]) -> None:
    named = set(read("compose.yaml")["volumes"])
    for name, source, _ in mounts(services):
        assert source in named or (STACK / source).exists(), (name, source)


def test_every_port_is_published_on_loopback_alone(services: dict[str, Any]) -> None:
    ports = [port for one in services.values() for port in one.get("ports", ())]
    assert sorted(ports) == ["127.0.0.1:3000:3000", "127.0.0.1:9090:9090"]


def test_what_is_configured_is_what_is_mounted(services: dict[str, Any]) -> None:
    """A command that names a file names one that a volume puts there."""
    for name, service in services.items():
        targets = [target for owner, _, target in mounts(services) if owner == name]
        for word in service.get("command", ()):
            path = word.partition("=")[2]
            if word.startswith("-") and path.startswith("/etc/"):
                assert path in targets, (name, path)


def test_sources_have_the_uids_that_others_ask_for(services: dict[str, Any]) -> None:
    sources = read("provisioning/datasources/hangup.yaml")["datasources"]
    uids = {source["type"]: source["uid"] for source in sources}
    variable = ids.PROVISIONED_SOURCE.removeprefix("$")
    assert services["grafana"]["environment"][variable] == uids["prometheus"]
    [prometheus] = [one for one in sources if one["type"] == "prometheus"]
    [leads] = prometheus["jsonData"]["exemplarTraceIdDestinations"]
    assert leads == {"name": "trace_id", "datasourceUid": uids["tempo"]}


def test_the_dashboards_are_looked_for_where_they_are_mounted(
    services: dict[str, Any],
) -> None:
    [provider] = read("provisioning/dashboards/hangup.yaml")["providers"]
    found = {target: source for _, source, target in mounts(services)}
    folder = STACK / found[provider["options"]["path"]]
    assert {path.name for path in folder.iterdir()} == {
        "budgets.json",
        "stopping.json",
        "wasted-spend.json",
    }


def test_every_pipeline_of_the_collector_is_made_of_what_there_is() -> None:
    config = read("collector.yaml")
    for pipeline in config["service"]["pipelines"].values():
        for part in ("receivers", "processors", "exporters"):
            assert set(pipeline[part]) <= set(config[part])
    endpoint = config["exporters"]["otlp/tempo"]["endpoint"]
    receivers = read("tempo.yaml")["distributor"]["receivers"]
    port = receivers["otlp"]["protocols"]["grpc"]["endpoint"].rpartition(":")[2]
    assert endpoint == f"tempo:{port}"


def test_promtool_takes_the_configuration_with_its_rules(tmp_path: Path) -> None:
    require("promtool")
    shutil.copy(STACK / "prometheus.yaml", tmp_path)
    shutil.copytree(TOP / "dashboards/generated/prometheus", tmp_path / "rules")
    done = subprocess.run(  # noqa: S603
        ["promtool", "check", "config", tmp_path / "prometheus.yaml"],  # noqa: S607
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "1 rule files found" in done.stdout
