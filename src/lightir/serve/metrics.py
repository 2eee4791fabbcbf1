"""Prometheus metrics of the service."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from lightir.serve.interface import Service

_SECONDS = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """Counts requests by route and status, and reads the state of the index."""

    def __init__(self, service: Service) -> None:
        """Count from zero."""
        self._service = service
        self._registry = CollectorRegistry()
        labels = ("method", "route", "status")
        self._seconds = Histogram(
            "lightir_request_seconds", "Time per request", labels, buckets=_SECONDS, registry=self._registry
        )
        self._known: dict[tuple[str, str, int], Histogram] = {}
        self._refused = Counter("lightir_refused", "Requests refused for a limit", ("reason",), registry=self._registry)

    def count(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request."""
        key = method, route, status
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._seconds.labels(method, route, str(status))
        known.observe(seconds)

    def refuse(self, reason: str) -> None:
        """Count a request that was refused for a limit."""
        self._refused.labels(reason).inc()

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format; those of all processes if the service has several."""
        counted, member = self._registry, self._service.member
        if member is not None:
            counted = CollectorRegistry()
            MultiProcessCollector(counted, path=str(member.metrics_folder))  # type: ignore[no-untyped-call]
        state = CollectorRegistry()
        state.register(_State(self._service))
        return generate_latest(counted) + generate_latest(state)


class _State(Collector):
    """The state of the index when it is asked for."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield a gauge per number."""
        for name, value in self._service.gauges().items():
            yield GaugeMetricFamily(f"lightir_{name}", name.replace("_", " "), value)
