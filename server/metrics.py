"""Metrics for Prometheus: answers, latencies, the state of the engines, and of the process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mxc.runtime.engine.engine import Engine
from mxc.runtime.engine.request import Outcome

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)


class Metrics:
    """The metrics of one server."""

    def __init__(self) -> None:
        """Create a registry, so that several servers of a process do not share counts."""
        self.registry = CollectorRegistry()
        self._engines = _Engines()
        self.registry.register(self._engines)
        ProcessCollector(registry=self.registry)  # memory, processor time, open files
        self._answers = Counter(
            "mxc_answers", "Answers that have ended", ["model", "reason"], registry=self.registry
        )
        self._responses = Counter(
            "mxc_http_responses", "Responses by status", ["status"], registry=self.registry
        )
        self._queue = self._histogram("mxc_queue_seconds", "Until a request first ran", _SECONDS)
        self._first = self._histogram(
            "mxc_time_to_first_token_seconds", "From the request to its first token", _SECONDS
        )
        self._token = self._histogram(
            "mxc_time_per_output_token_seconds", "Between tokens of an answer", _TOKEN_SECONDS
        )

    def watch(self, model: str, engine: Engine) -> None:
        """Include the counters of an engine in the metrics."""
        self._engines.engines[model] = engine

    def answered(self, model: str, outcome: Outcome) -> None:
        """Count an answer that has ended, and observe its latencies."""
        self._answers.labels(model, outcome.reason).inc()
        if outcome.started is not None:
            self._queue.labels(model).observe(outcome.started - outcome.submitted)
        if outcome.first_token is not None:
            self._first.labels(model).observe(outcome.first_token - outcome.submitted)
            if outcome.generated_tokens > 1:
                took = outcome.ended - outcome.first_token
                self._token.labels(model).observe(took / (outcome.generated_tokens - 1))

    def responded(self, status: int) -> None:
        """Count a response by its HTTP status."""
        self._responses.labels(str(status)).inc()

    def text(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self.registry)

    def _histogram(self, name: str, text: str, buckets: Iterable[float]) -> Histogram:
        return Histogram(name, text, ["model"], buckets=tuple(buckets), registry=self.registry)


#: Metrics of an engine: name, help text, and the field of EngineCounts.
_GAUGES = (
    ("mxc_requests_running", "Requests with pages", "running"),
    ("mxc_requests_waiting", "Requests in the queue", "waiting"),
)
_COUNTERS = (
    ("mxc_steps", "Steps of the model", "steps"),
    ("mxc_prompt_tokens", "Prompt tokens that were computed", "prompt_tokens"),
    ("mxc_generated_tokens", "Tokens that were generated", "generated_tokens"),
    ("mxc_cached_tokens", "Prompt tokens of the prefix cache", "cached_tokens"),
    ("mxc_preemptions", "Requests that gave their pages back", "preemptions"),
)


class _Engines(Collector):
    """Reads the counters of engines when the metrics are requested."""

    def __init__(self) -> None:
        self.engines: dict[str, Engine] = {}

    def describe(self) -> Iterator[Metric]:
        """Return nothing: names are known only when metrics are collected."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yield the current gauges and counters."""
        now = {model: engine.counts for model, engine in self.engines.items()}
        for name, text, field in _GAUGES:
            gauge = GaugeMetricFamily(name, text, labels=["model"])
            for model, counts in now.items():
                gauge.add_metric([model], getattr(counts, field))
            yield gauge
        for name, text, field in _COUNTERS:
            counter = CounterMetricFamily(name, text, labels=["model"])
            for model, counts in now.items():
                counter.add_metric([model], getattr(counts, field))
            yield counter
        pages = GaugeMetricFamily("mxc_pages", "Pages of KV cache", labels=["model", "kind", "use"])
        for model, counts in now.items():
            for kind, held in enumerate(counts.store.pages):
                for use in ("used", "cached", "free"):
                    pages.add_metric([model, str(kind), use], getattr(held, use))
        yield pages
