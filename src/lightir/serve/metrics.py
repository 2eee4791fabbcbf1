"""Prometheus metrics of the service."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from lightir.serve.service import SearchService

_SECONDS = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """Counts requests by route and status, and reads the state of the index."""

    def __init__(self, service: SearchService) -> None:
        """Count from zero."""
        self._registry = CollectorRegistry()
        labels = ("method", "route", "status")
        self._seconds = Histogram(
            "lightir_request_seconds", "Time per request", labels, buckets=_SECONDS, registry=self._registry
        )
        self._known: dict[tuple[str, str, int], Histogram] = {}
        self._refused = Counter("lightir_refused", "Requests refused for a limit", ("reason",), registry=self._registry)
        gauges = {
            "documents": lambda: len(service.index),
            "pending_documents": lambda: service.index.view.n_pending,
            "segments": lambda: len(service.index.view.segments),
            "generation": lambda: service.index.view.generation,
            "serves_newest_state": lambda: service.problem is None,
            "waiting_writes": lambda: 0 if service.writes is None else len(service.writes),
        }
        for name, read in gauges.items():
            gauge = Gauge(f"lightir_{name}", name.replace("_", " "), registry=self._registry)
            gauge.set_function(read)

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
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)
