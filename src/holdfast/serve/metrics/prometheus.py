"""The Prometheus endpoint: the samples of all runs in the text format, by prometheus-client."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from holdfast.serve.live.watch import RunWatch
from holdfast.serve.metrics.samples import METRICS, MetricSample, collect_run

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
#: Runs with metrics: all that are live, and the newest.
MAX_RUNS = 20


def collect_runs(watch: RunWatch) -> list[MetricSample]:
    """Return the samples of the live and the newest runs."""
    heads = watch.heads()
    shown = [head for at, head in enumerate(heads) if head.live or at < MAX_RUNS][: 5 * MAX_RUNS]
    samples: list[MetricSample] = []
    for head in shown:
        folder = watch.find(head.name)
        if folder is not None:
            samples += collect_run(head, watch.live(folder))
    return samples


def render_metrics(samples: Iterable[MetricSample]) -> bytes:
    """Return the samples in the Prometheus text format."""
    registry = CollectorRegistry()
    registry.register(_SampleCollector(samples))
    return generate_latest(registry)


class _SampleCollector(Collector):
    """Yields one family per metric that has samples."""

    def __init__(self, samples: Iterable[MetricSample]) -> None:
        self._samples = list(samples)

    def describe(self) -> list[Metric]:
        """Return no metric, so that registering collects nothing."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the families in the order of the table."""
        by_name: dict[str, list[MetricSample]] = {name: [] for name in METRICS}
        for sample in self._samples:
            by_name[sample.name].append(sample)
        for name, samples in by_name.items():
            spec = METRICS[name]
            kind = CounterMetricFamily if spec.is_counter else GaugeMetricFamily
            family = kind(name, spec.help, labels=("run", *spec.labels))
            for sample in samples:
                family.add_metric(sample.labels, sample.value)
            if samples:
                yield family
