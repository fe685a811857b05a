"""Metrics: stable names, few series for any number of ranks, read by a real Prometheus."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from holdfast.serve.live.reader import LiveFiles, select_state
from holdfast.serve.live.runs import RunHead
from holdfast.serve.live.watch import RunWatch
from holdfast.serve.metrics.dashboard import (
    ALERTS,
    DASHBOARD,
    PANELS,
    SCRAPE,
    alert_rules,
    write_rules,
)
from holdfast.serve.metrics.prometheus import collect_runs, render_metrics
from holdfast.serve.metrics.samples import EACH, METRICS, OUTLIERS, collect_run
from holdfast.watcher.live_columns import build_live_state
from tests.unit.serve.served import RUN, make_run, serving
from tests.unit.serve.simulated_job import simulate

AT = 1_700_000_000.0
HEAD = RunHead(name="run", path="/run", starts=1, failures=2)


def samples(world_size: int, *, stuck: int | None = None):
    state = build_live_state(simulate(world_size, AT, step=9, stuck=stuck), {0: 1.0, 1: 3.0}, [])
    return collect_run(HEAD, select_state(LiveFiles((state,), ()), AT + 1))


def values(found):
    return {(sample.name, *sample.labels[1:]): sample.value for sample in found}


def test_a_small_job_has_a_series_per_rank():
    found = values(samples(16, stuck=2))
    assert found["holdfast_world_size",] == 16
    assert found["holdfast_waiting_ranks",] == 15
    assert found["holdfast_steps_per_second",] == 2.0
    assert found["holdfast_ranks", "running"] == 16
    assert found["holdfast_rank_wait_ratio", "3", "node000"] == 0.02
    assert found["holdfast_gpu_temperature_celsius", "node000", "3", "NVIDIA H100 80GB HBM3"] == 84
    assert found["holdfast_throttled_gpus", "NVIDIA H100 80GB HBM3"] == 1
    assert found["holdfast_collective_seconds", "default_pg", "all_reduce", "p99"] == 0.061


def test_the_number_of_series_does_not_grow_with_the_job():
    few, many = samples(EACH + 1), samples(4096)
    assert len(many) < 150
    assert len(many) - len(few) <= EACH  # hosts: each of a few, some of many
    slowest = [sample for sample in many if sample.name == "holdfast_rank_wait_ratio"]
    assert len(slowest) == OUTLIERS
    assert slowest[0].labels == ("run", "3", "node000")


def test_a_run_that_ended_keeps_only_its_result():
    head = RunHead(name="run", path="/run", ended=AT, status=1, failures=1)
    reading = select_state(LiveFiles((), ()), AT)
    found = values(collect_run(head, reading))
    assert found == {
        ("holdfast_run_live",): 0.0,
        ("holdfast_starts",): 0,
        ("holdfast_failures",): 1,
        ("holdfast_run_status",): 1,
    }


def test_the_text_format_is_parsed_by_its_own_parser_and_names_what_the_table_lists(tmp_path):
    make_run(tmp_path, 16, stuck=2)
    text = render_metrics(collect_runs(RunWatch(tmp_path))).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert set(families) <= set(METRICS)
    assert families["holdfast_failures"].type == "counter"
    assert families["holdfast_failures"].samples[0].labels == {"run": RUN}


def metric_names(expression: str) -> set[str]:
    return {name for name in METRICS if name in expression}


def test_rules_and_dashboard_use_metrics_that_exist():
    rules = [
        rule["expr"] for group in yaml.safe_load(alert_rules())["groups"] for rule in group["rules"]
    ]
    queries = [query for panel in PANELS for query, _ in panel.queries]
    assert all(metric_names(expression) for expression in [*rules, *queries])


def test_a_folder_gets_rules_dashboard_and_configuration(tmp_path):
    written = write_rules(tmp_path / "new", "127.0.0.1:8765")
    assert [path.name for path in written] == [ALERTS, DASHBOARD, SCRAPE]
    dashboard = json.loads((tmp_path / "new" / DASHBOARD).read_text())
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(PANELS)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in dashboard["panels"])


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
@pytest.mark.slow
def test_promtool_accepts_rules_configuration_and_metrics(tmp_path):
    write_rules(tmp_path, "127.0.0.1:8765")
    make_run(tmp_path / "runs", 16, stuck=2)
    text = render_metrics(collect_runs(RunWatch(tmp_path / "runs")))
    for arguments, given in (
        (["check", "config", str(tmp_path / SCRAPE)], b""),
        (["check", "rules", str(tmp_path / ALERTS)], b""),
        (["check", "metrics"], text),
    ):
        done = subprocess.run(
            ["promtool", *arguments], input=given, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr.decode() + done.stdout.decode()


_RULE_TEST = """
rule_files: [{alerts}]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - {{series: 'holdfast_silent_seconds{{run="a"}}', values: '0+60x20'}}
      - {{series: 'holdfast_stall_limit_seconds{{run="a"}}', values: '30x20'}}
      - {{series: 'holdfast_run_live{{run="a"}}', values: '1x20'}}
      - {{series: 'holdfast_wait_ratio{{run="a",statistic="median"}}', values: '0.5x20'}}
      - {{series: 'holdfast_wait_ratio{{run="a",statistic="lowest"}}', values: '0.1x20'}}
      - {{series: 'holdfast_run_status{{run="b"}}', values: '0x5 1x5'}}
    alert_rule_test:
      - {{eval_time: 1m, alertname: HoldfastJobStalled, exp_alerts: []}}
      - eval_time: 5m
        alertname: HoldfastJobStalled
        exp_alerts:
          - exp_labels: {{run: a, severity: critical}}
            exp_annotations:
              summary: No rank of a has advanced for 5m 0s
              action: "Open the page of the run, or run: holdfast history"
      - eval_time: 10m
        alertname: HoldfastStraggler
        exp_alerts:
          - exp_labels: {{run: a, severity: warning, statistic: median}}
            exp_annotations: {{summary: The ranks of a wait 40% of the time for the slowest}}
      - eval_time: 8m
        alertname: HoldfastRunFailed
        exp_alerts:
          - exp_labels: {{run: b, severity: critical}}
            exp_annotations: {{summary: b ended with status 1}}
"""


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_the_rules_fire_when_they_should(tmp_path):
    write_rules(tmp_path, "127.0.0.1:8765")
    test = tmp_path / "test.yml"
    test.write_text(_RULE_TEST.format(alerts=tmp_path / ALERTS))
    done = subprocess.run(
        ["promtool", "test", "rules", str(test)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="Prometheus is not installed")
@pytest.mark.slow
def test_a_real_prometheus_scrapes_a_run_and_answers_every_query_of_the_dashboard(tmp_path):
    make_run(tmp_path / "runs", 16, stuck=2)
    with serving(tmp_path / "runs", metrics_only=True) as address:
        write_rules(tmp_path, address.removeprefix("http://"))
        config = tmp_path / SCRAPE
        config.write_text(config.read_text().replace("15s", "200ms"))
        with RealPrometheus(config, tmp_path / "data") as query:
            found = _wait_for(lambda: query('holdfast_rank_wait_ratio{rank="3"}'))
            assert found[0]["metric"]["run"] == RUN
            for panel in PANELS:
                for expression, _ in panel.queries:
                    assert query(expression.replace("$run", ".*")), expression


class RealPrometheus:
    """A real Prometheus on a free port; the context is a function that runs a query."""

    def __init__(self, config, data):
        self.config, self.data = config, data

    def __enter__(self):
        from tests.ports import free_port

        port = free_port()
        self.process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={self.config}",
                f"--storage.tsdb.path={self.data}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--log.level=error",
            ]
        )

        def query(expression):
            url = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode(
                {"query": expression}
            )
            try:
                with urllib.request.urlopen(url, timeout=5) as answer:
                    return json.load(answer)["data"]["result"]
            except (ConnectionError, urllib.error.URLError):
                return []

        return query

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(10)


def _wait_for(check, seconds=40.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = check()
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError("nothing within the time limit")


def test_opentelemetry_exports_the_same_samples_to_a_real_receiver(tmp_path):
    export = pytest.importorskip("opentelemetry.proto.collector.metrics.v1.metrics_service_pb2")
    from holdfast.serve.metrics.opentelemetry import start_export

    make_run(tmp_path, 8, stuck=2)
    received = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                import gzip

                body = gzip.decompress(body)
            received.append(export.ExportMetricsServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    watch = RunWatch(tmp_path)
    end = start_export(
        f"http://127.0.0.1:{server.server_port}/v1/metrics", lambda: collect_runs(watch), 3600
    )
    end()  # exports once
    server.shutdown()
    server.server_close()
    metrics = {
        metric.name: metric
        for resource in received[0].resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    expected = {sample.name for sample in collect_runs(watch)}
    assert set(metrics) == expected
    assert metrics["holdfast_failures"].sum.is_monotonic
    (point,) = metrics["holdfast_world_size"].gauge.data_points
    assert point.as_double == 8
    assert [(each.key, each.value.string_value) for each in point.attributes] == [("run", RUN)]


def test_the_documentation_lists_every_metric():
    page = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text()
    missing = [
        name
        for name, spec in METRICS.items()
        if f"| `{name}{'_total' if spec.is_counter else ''}` |" not in page
    ]
    assert missing == []
