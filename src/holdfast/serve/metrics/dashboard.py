"""The Grafana dashboard, and the files that ``holdfast serve --write-rules`` writes."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from holdfast.core.atomic_files import write_atomic

ALERTS, DASHBOARD, SCRAPE = "holdfast-alerts.yml", "holdfast-dashboard.json", "prometheus.yml"
_SOURCE = {"type": "prometheus", "uid": "${source}"}


class Panel(NamedTuple):
    """A panel: title, Grafana's unit, and queries with their legends. Three panels are in a row."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    kind: str = "timeseries"


PANELS = (
    Panel("Step", "none", (('holdfast_step{run=~"$run"}', "{{run}}"),), "stat"),
    Panel(
        "Time since progress", "s", (('holdfast_silent_seconds{run=~"$run"}', "{{run}}"),), "stat"
    ),
    Panel("Failures", "none", (('holdfast_failures_total{run=~"$run"}', "{{run}}"),), "stat"),
    Panel("Steps per second", "none", (('holdfast_steps_per_second{run=~"$run"}', "{{run}}"),)),
    Panel("Ranks by state", "none", (('holdfast_ranks{run=~"$run"} > 0', "{{state}}"),)),
    Panel(
        "Waiting in collectives",
        "percentunit",
        (('holdfast_wait_ratio{run=~"$run"}', "{{statistic}} of {{run}}"),),
    ),
    Panel(
        "Ranks that wait least",
        "percentunit",
        (('bottomk(8, holdfast_rank_wait_ratio{run=~"$run"})', "rank {{rank}} on {{host}}"),),
    ),
    Panel(
        "Collectives, 99th percentile",
        "s",
        (
            (
                'holdfast_collective_seconds{run=~"$run",statistic="p99"}',
                "{{operation}} of {{group}}",
            ),
        ),
    ),
    Panel(
        "Ranks that wait for others", "none", (('holdfast_waiting_ranks{run=~"$run"}', "{{run}}"),)
    ),
    Panel(
        "GPU temperature by kind",
        "celsius",
        (('holdfast_gpu_kind_temperature_celsius{run=~"$run"}', "{{statistic}} {{kind}}"),),
    ),
    Panel(
        "GPU memory in use",
        "bytes",
        (('topk(8, holdfast_gpu_memory_used_bytes{run=~"$run"})', "{{host}} GPU {{gpu}}"),),
    ),
    Panel(
        "Available host memory",
        "bytes",
        (('bottomk(8, holdfast_node_available_memory_bytes{run=~"$run"})', "{{host}}"),),
    ),
)


def build_dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana imports it (schema 39: Grafana 10 and later)."""
    return {
        "title": "holdfast",
        "uid": "holdfast",
        "tags": ["holdfast", "pytorch"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": list(_variables())},
        "panels": [_panel(number, panel) for number, panel in enumerate(PANELS)],
        "annotations": {"list": []},
    }


def _variables() -> Iterator[dict[str, Any]]:
    yield {"name": "source", "label": "Source", "type": "datasource", "query": "prometheus"}
    yield {
        "name": "run",
        "label": "Run",
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": "label_values(holdfast_run_live, run)", "refId": "run"},
        "refresh": 2,
        "sort": 2,
        "multi": True,
        "includeAll": True,
    }


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    row, column = divmod(number, 3)
    return {
        "id": number + 1,
        "title": panel.title,
        "type": panel.kind,
        "datasource": _SOURCE,
        "gridPos": {"x": column * 8, "y": row * 8, "w": 8, "h": 8},
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + at),
                "datasource": _SOURCE,
                "expr": query,
                "legendFormat": legend,
            }
            for at, (query, legend) in enumerate(panel.queries)
        ],
    }


def alert_rules() -> str:
    """Return the alert rules, a rule file of Prometheus."""
    return files("holdfast.serve.metrics").joinpath("alerts.yml").read_text()


def write_rules(folder: Path, target: str) -> tuple[Path, ...]:
    """Write dashboard, alert rules and a configuration that scrapes ``target`` (host:port).

    Raises:
        MissingFile: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    scrape = (
        f"global: {{scrape_interval: 15s}}\nrule_files: [{ALERTS}]\nscrape_configs:\n"
        f"  - job_name: holdfast\n    static_configs: [{{targets: ['{target}']}}]\n"
        "    # authorization: {credentials_file: /path/to/token}  # outside of 127.0.0.1\n"
    )
    dashboard = msgspec.json.format(msgspec.json.encode(build_dashboard()), indent=2)
    contents = {ALERTS: alert_rules().encode(), DASHBOARD: dashboard, SCRAPE: scrape.encode()}
    for name, content in contents.items():
        write_atomic(folder / name, content)
    return tuple(folder / name for name in contents)
