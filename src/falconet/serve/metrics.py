"""What Prometheus reads at /metrics. The only file that imports prometheus_client."""

from __future__ import annotations

import time

from falconet.errors import ConfigError
from falconet.serve.answers import Recommendation
from falconet.serve.serving import Serving

_MS = (0.25, 0.5, 1, 2, 3, 5, 8, 12, 20, 35, 60, 100, 250, 1000)


class Metrics:
    """Counts answers and times their stages, of this process. Raises ConfigError where the package is missing."""

    def __init__(self, serving: Serving) -> None:
        try:
            import prometheus_client as prometheus
        except ImportError as error:
            raise ConfigError("metrics need prometheus_client", hint='pip install "falconet[metrics]"') from error
        self._prometheus, self._serving = prometheus, serving
        self._registry = prometheus.CollectorRegistry()
        registry = self._registry
        self._stages = prometheus.Histogram(
            "falconet_stage_milliseconds", "Time of the stages of an answer", ["stage"], buckets=_MS, registry=registry
        )
        self._answers = prometheus.Counter(
            "falconet_answers", "Answers, by where their items come from", ["source"], registry=registry
        )
        self._cold = prometheus.Counter(
            "falconet_cold_starts", "Answers to people of whom nothing is known", registry=registry
        )
        self._short = prometheus.Counter(
            "falconet_short_answers", "Answers with fewer items than were asked for", registry=registry
        )
        self._degraded = prometheus.Counter(
            "falconet_degraded_answers", "Answers that went without a stage", ["stage"], registry=registry
        )
        self._events = prometheus.Counter(
            "falconet_events", "Events, by what became of them", ["outcome"], registry=registry
        )
        self._last = prometheus.Gauge(
            "falconet_last_event_time_seconds", "When an event was last taken in", registry=registry
        )
        self._since = prometheus.Gauge(
            "falconet_bundle_loaded_time_seconds", "When the bundle was loaded", registry=registry
        )
        self._items = prometheus.Gauge("falconet_bundle_items", "Items of the bundle", ["bundle"], registry=registry)

    def answered(self, answer: Recommendation, k: int | None = None) -> None:
        """Count an answer, of `k` items where all were asked for."""
        for stage, ms in answer.took_ms.items():
            self._stages.labels(stage).observe(ms)
        self._answers.labels(answer.items[0].source if answer.items else "none").inc()
        self._cold.inc(answer.cold_start)
        for stage in answer.degraded:
            self._degraded.labels(stage).inc()
        self._short.inc(k is not None and len(answer.items) < k)

    def took_in(self, accepted: int, duplicates: int, rejected: int) -> None:
        """Count a batch of events."""
        for outcome, count in (("accepted", accepted), ("duplicate", duplicates), ("rejected", rejected)):
            self._events.labels(outcome).inc(count)
        if accepted:
            self._last.set(time.time())

    def text(self) -> tuple[bytes, str]:
        """The figures as Prometheus reads them, and their media type."""
        self._since.set(self._serving.since)
        self._items.clear()
        described = self._serving.recommender.describe()
        self._items.labels(described["bundle"]).set(described["items"])
        return self._prometheus.generate_latest(self._registry), self._prometheus.CONTENT_TYPE_LATEST
