"""Metrics of runs: for Prometheus and OpenTelemetry, with dashboard and alert rules."""
