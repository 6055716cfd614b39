"""What is committed is what the generator writes, and it writes proper YAML."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from dashboards import files, ids, settings
from dashboards.alerts import ALERTS
from dashboards.yamltext import to_yaml

FOLDER = Path(files.__file__).parent
GENERATED = FOLDER / "generated"


def test_what_is_committed_is_what_the_generator_writes() -> None:
    """Run `python -m dashboards` after a change."""
    committed = {
        str(path.relative_to(GENERATED)): path.read_text()
        for path in sorted(GENERATED.rglob("*"))
        if path.is_file()
    }
    assert dict(files.generated()) == committed


@pytest.mark.parametrize(
    "made",
    [
        files.prometheus_rules(),
        files.provisioned_alerts(),
        files.prometheus_rule(),
        files.config_map("budgets", files.BOARDS["budgets"]),
        {"text": ["on", "1", "", "a: b", "# no", "- x", "two\nlines"]},
        {"none": [{}, []]},
        {"block": "a\n\n  b\n", "stripped": "a\nb", "n": 1, "f": 0.5, "t": True},
    ],
)
def test_the_yaml_says_what_was_meant(made: Any) -> None:
    assert yaml.safe_load(to_yaml(made)) == made


def test_a_burn_rate_that_cannot_fire_is_refused() -> None:
    with pytest.raises(settings.CannotFireError, match=r"is a share of 1\.44 of all"):
        settings.Burn(objective=0.1, factor=14.4, long="1h", short="5m", least=20)
    with pytest.raises(settings.CannotFireError):
        settings.Burn(objective=0.1, factor=8, long="1h", short="5m", least=20)
    fires = settings.Burn(objective=0.1, factor=7.9, long="1h", short="5m", least=20)
    assert fires.share == pytest.approx(0.79)


def test_every_alert_has_its_section_in_the_runbook() -> None:
    sections = (FOLDER / "RUNBOOK.md").read_text().split("\n## ")[1:]
    titles = [section.partition("\n")[0] for section in sections]
    assert titles == [alert.name for alert in ALERTS]
    for section in sections:
        for part in ("**What it means.**", "**How to look.**", "**What to do.**"):
            assert section.count(part) == 1, (section[:40], part)


def test_the_runbook_leads_nowhere_that_is_not_there() -> None:
    text = (FOLDER / "RUNBOOK.md").read_text()
    anchors = {ids.anchor(alert.name) for alert in ALERTS}
    linked = {part.partition(")")[0] for part in text.split("](#")[1:]}
    assert linked <= anchors
    titles = {
        panel["title"] for board in files.BOARDS.values() for panel in board["panels"]
    }
    quoted = {"Worst offenders", "Bus health", "Patience against duration"}
    quoted |= {"Calls without usage by model", "Answers lost, a minute"}
    quoted |= {"Processes by version, mode and policy", "Swallowed cancels by run name"}
    quoted |= {"Oldest still stopping, by process", "Unknown, at most"}
    for title in quoted:
        assert f'"{title}"' in " ".join(text.split()), title
        assert title in titles


def every_alert_rule() -> list[dict[str, Any]]:
    """The rules of every form, each as Prometheus has them."""
    made = []
    for group in (
        files.prometheus_rules()["groups"] + files.prometheus_rule()["spec"]["groups"]
    ):
        made += [rule for rule in group["rules"] if "alert" in rule]
    for group in files.provisioned_alerts()["groups"]:
        made += [{**rule, "alert": rule["title"]} for rule in group["rules"]]
    return made


def test_every_alert_links_to_its_section_and_to_a_dashboard() -> None:
    rules = every_alert_rule()
    assert len(rules) == 3 * len(ALERTS)
    uids = {board["uid"] for board in files.BOARDS.values()}
    for rule in rules:
        notes = rule["annotations"]
        url = f"{settings.RUNBOOK_URL}#{rule['alert'].lower()}"
        assert notes["runbook_url"] == url
        assert notes["dashboard"].removeprefix("/d/") in uids
        assert rule["labels"]["severity"] in ("page", "ticket")


def test_provisioned_alerts_leave_grafana_one_variable_to_fill() -> None:
    """Grafana puts its environment in place of every `$` it finds in there."""
    text = (GENERATED / "provisioning/alerts.yaml").read_text()
    assert text.count("$") == text.count(ids.PROVISIONED_SOURCE) == len(ALERTS)
    uids = [
        rule["uid"]
        for group in files.provisioned_alerts()["groups"]
        for rule in group["rules"]
    ]
    assert len(set(uids)) == len(uids)


def test_dashboards_are_config_maps_that_grafanas_sidecar_finds() -> None:
    for name, board in files.BOARDS.items():
        made = files.config_map(name, board)
        assert made["metadata"]["labels"]["grafana_dashboard"] == "1"
        [text] = made["data"].values()
        assert json.loads(text) == board


def test_pages_are_about_enforced_runs_only() -> None:
    """What observing shows, 40 % walking away, is no emergency."""
    pages = {alert.name: alert.expr for alert in ALERTS if alert.severity == "page"}
    assert set(pages) == {
        "HangupEnforcementHarms",
        "HangupBrakeTripped",
        "HangupWasteRate",
        "HangupRunsNotStopping",
    }
    del pages["HangupBrakeTripped"]  # the brake is of enforcing
    for name, expr in pages.items():
        assert 'hangup_mode="enforce"' in expr, name
