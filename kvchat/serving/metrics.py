"""Metrics in Prometheus' text format, under vLLM's names where they mean the same.

Metrics that vLLM does not have are under `kvchat:`. Requests are those of the endpoint; prefix cache tokens,
running and waiting requests are those of the engine, whoever asked.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from threading import Lock

from kvchat.engine.api.events import RequestFinished
from kvchat.engine.api.snapshot import CacheSnapshot, Tier

_SECONDS = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Histogram:
    """Seconds, in buckets of Prometheus: each counts what is at most its bound."""

    def __init__(self) -> None:
        self._counts = [0] * (len(_SECONDS) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(_SECONDS, value)] += 1
        self._sum += value

    def lines(self, name: str, label: str) -> Iterator[str]:
        total = 0
        for bound, count in zip((*map(str, _SECONDS), "+Inf"), self._counts, strict=True):
            total += count
            yield f'{name}_bucket{{{label},le="{bound}"}} {total}'
        yield f"{name}_count{{{label}}} {total}"
        yield f"{name}_sum{{{label}}} {self._sum}"


class Metrics:
    """What the endpoint has done since it began. Any thread may call."""

    def __init__(self) -> None:
        self._guard = Lock()
        self._finished: Counter[str] = Counter()
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._generated_tokens = 0
        self._first_token_s = Histogram()
        self._total_s = Histogram()

    def count(self, finished: RequestFinished, total_s: float) -> None:
        """Count a request that has ended."""
        with self._guard:
            self._finished[finished.reason.value] += 1
            self._prompt_tokens += finished.usage.prompt_tokens
            self._cached_tokens += finished.usage.cached_tokens
            self._generated_tokens += finished.usage.completion_tokens
            self._total_s.observe(total_s)
            if finished.timings.ttft_s is not None:
                self._first_token_s.observe(finished.timings.ttft_s)

    def text(self, model: str, snapshot: CacheSnapshot | None) -> str:
        """Return everything as Prometheus reads it."""
        label = f'model_name="{_escaped(model)}"'
        with self._guard:
            lines = [*self._request_lines(label)]
        if snapshot is not None:
            lines += _engine_lines(snapshot, label)
        return "\n".join(lines) + "\n"

    def _request_lines(self, label: str) -> Iterator[str]:
        for name, kind, value in (
            ("vllm:prompt_tokens_total", "counter", self._prompt_tokens),
            ("vllm:generation_tokens_total", "counter", self._generated_tokens),
            ("kvchat:cached_prompt_tokens_total", "counter", self._cached_tokens),
        ):
            yield from (f"# TYPE {name} {kind}", f"{name}{{{label}}} {value}")
        yield "# TYPE vllm:request_success_total counter"
        for reason, number in sorted(self._finished.items()):
            yield f'vllm:request_success_total{{{label},finished_reason="{reason}"}} {number}'
        for name, histogram in (
            ("vllm:time_to_first_token_seconds", self._first_token_s),
            ("vllm:e2e_request_latency_seconds", self._total_s),
        ):
            yield f"# TYPE {name} histogram"
            yield from histogram.lines(name, label)


def _engine_lines(snapshot: CacheSnapshot, label: str) -> Iterator[str]:
    device = snapshot.tier(Tier.DEVICE)
    usage = device.used_bytes / device.total_bytes if device.total_bytes else 0.0
    asked = snapshot.reused_tokens + snapshot.computed_tokens
    for name, kind, value in (
        ("vllm:num_requests_running", "gauge", snapshot.num_running),
        ("vllm:num_requests_waiting", "gauge", snapshot.num_waiting),
        ("vllm:kv_cache_usage_perc", "gauge", usage),
        ("vllm:prefix_cache_queries_total", "counter", asked),
        ("vllm:prefix_cache_hits_total", "counter", snapshot.reused_tokens),
    ):
        yield from (f"# TYPE {name} {kind}", f"{name}{{{label}}} {value}")
    yield "# TYPE kvchat:tier_bytes gauge"
    for tier in snapshot.tiers:
        place = f'{label},tier="{tier.tier.value}"'
        yield f'kvchat:tier_bytes{{{place},state="used"}} {tier.used_bytes}'
        yield f'kvchat:tier_bytes{{{place},state="cached"}} {tier.cached_bytes}'


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
