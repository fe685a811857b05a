"""Exports the same metrics by OTLP over HTTP, through the SDK of OpenTelemetry."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource

from holdfast.serve.metrics.samples import METRICS, MetricSample


def start_export(
    endpoint: str, collect: Callable[[], Sequence[MetricSample]], every_s: float
) -> Callable[[], None]:
    """Export to ``endpoint`` (such as http://127.0.0.1:4318/v1/metrics) every ``every_s`` seconds.

    Return a function that exports once more and ends the export.
    """
    exporter = OTLPMetricExporter(endpoint=endpoint, timeout=5)
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=every_s * 1000)
    provider = MeterProvider([reader], Resource.create({"service.name": "holdfast"}))
    meter = provider.get_meter("holdfast")
    shared = _SharedCollection(collect)
    for name, spec in METRICS.items():
        create = (
            meter.create_observable_counter if spec.is_counter else meter.create_observable_gauge
        )
        create(name, callbacks=[partial(_observe, shared, name)], description=spec.help)

    def end() -> None:
        provider.shutdown()

    return end


class _SharedCollection:
    """Collects once for all instruments of an export: the first one of the table starts it."""

    def __init__(self, collect: Callable[[], Sequence[MetricSample]]) -> None:
        self._collect = collect
        self._by_name: dict[str, list[MetricSample]] = {}

    def samples(self, name: str) -> Sequence[MetricSample]:
        """Return the samples of one metric."""
        if name == next(iter(METRICS)) or not self._by_name:
            self._by_name = defaultdict(list)
            for sample in self._collect():
                self._by_name[sample.name].append(sample)
        return self._by_name.get(name, ())


def _observe(shared: _SharedCollection, name: str, _options: CallbackOptions) -> Iterable[Any]:
    labels = ("run", *METRICS[name].labels)
    for sample in shared.samples(name):
        yield Observation(float(sample.value), dict(zip(labels, sample.labels, strict=True)))
