"""Cache metrics of a server: Prometheus' text format, under the names that servers use.

vLLM has renamed some of its metrics, so each has several names; the first one found counts.
"""

import re
from collections.abc import Iterator, Sequence
from math import isfinite

from kvchat.engine.api.server_cache import ServerCache

_USAGE = (
    "vllm:kv_cache_usage_perc",
    "vllm:gpu_cache_usage_perc",  # its older name
    "sglang:token_usage",
    "llamacpp:kv_cache_usage_ratio",
)
_HOST_USAGE = ("vllm:cpu_cache_usage_perc",)  # of the engine before v1
_HOST_TOKENS = (("sglang:hicache_host_used_tokens", "sglang:hicache_host_total_tokens"),)
_HIT_TOKENS = (
    ("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"),
    ("vllm:prefix_cache_hits", "vllm:prefix_cache_queries"),
    ("sglang:cached_tokens_total", "sglang:prompt_tokens_total"),
)
_HITS = (  # blocks first, tokens later, under one name
    ("vllm:gpu_prefix_cache_hits_total", "vllm:gpu_prefix_cache_queries_total"),
    ("vllm:gpu_prefix_cache_hits", "vllm:gpu_prefix_cache_queries"),
)
_HIT_RATE = ("vllm:gpu_prefix_cache_hit_rate", "sglang:cache_hit_rate")
_RUNNING = ("vllm:num_requests_running", "sglang:num_running_reqs", "llamacpp:requests_processing")
_WAITING = ("vllm:num_requests_waiting", "sglang:num_queue_reqs", "llamacpp:requests_deferred")

_PREFIXES = ("vllm:", "sglang:", "llamacpp:")
_ONCE = {"tp_rank": "0", "pp_rank": "0", "priority": ""}
"""Labels of figures that are told several times over: these tell them once."""
_MOST = 1 << 53
_MOST_LINE = 1 << 14

_LINE = re.compile(r'([a-z]+:\w+)(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*+")*+)\})?\s++(\S++)')
_LABEL = re.compile(r'(\w++)="((?:[^"\\]|\\.)*+)"')

_Sample = tuple[str, str, float]
"""A figure's name, whose it is, and its value."""


def served_cache(text: str, model: str | None = None) -> ServerCache | None:
    """Return what metrics say of a cache, None where that is nothing. Text of any kind will do.

    Args:
        text: a line that does not end is left out: it may be half a number.
        model: where figures are told by model and one is of this name, its figures count alone.
    """
    figures = _Figures([*_samples(text)], model)
    hits = figures.pair(_HIT_TOKENS)
    counted = hits or figures.pair(_HITS)
    found = ServerCache(
        usage=figures.share(_USAGE),
        host_usage=_known(figures.share(_HOST_USAGE), _rate(figures.pair(_HOST_TOKENS))),
        hit_rate=_known(_rate(counted), figures.share(_HIT_RATE)),
        hit_tokens=None if hits is None else hits[0],
        asked_tokens=None if hits is None else hits[1],
        num_running=figures.count(_RUNNING),
        num_waiting=figures.count(_WAITING),
    )
    return None if found == ServerCache() else found


class _Figures:
    """Each figure's values, one for each of a server's engines."""

    def __init__(self, samples: Sequence[_Sample], model: str | None) -> None:
        is_told_by_model = any(whose == model for _, whose, _ in samples)
        self._values: dict[str, list[float]] = {}
        for name, whose, value in samples:
            if not is_told_by_model or whose in (model, ""):
                self._values.setdefault(name, []).append(value)

    def _of(self, names: Sequence[str]) -> list[float]:
        """Return the values under the first known name; -1, as vLLM says where it has none, if none is."""
        return next((self._values[name] for name in names if name in self._values), [-1])

    def share(self, names: Sequence[str]) -> float | None:
        values = self._of(names)
        share = sum(values) / len(values)
        return share if 0 <= share <= 1 else None

    def count(self, names: Sequence[str]) -> int | None:
        total = sum(self._of(names))
        return int(total) if 0 <= total < _MOST else None

    def pair(self, names: Sequence[tuple[str, str]]) -> tuple[int, int] | None:
        """Return a part and its whole, both under names of one time."""
        for pair in names:
            part, whole = self.count(pair[:1]), self.count(pair[1:])
            if part is not None and whole is not None and part <= whole:
                return part, whole
        return None


def _known(*shares: float | None) -> float | None:
    return next((share for share in shares if share is not None), None)


def _rate(pair: tuple[int, int] | None) -> float | None:
    return pair[0] / pair[1] if pair and pair[1] else None


def _samples(text: str) -> Iterator[_Sample]:
    lines = text.split("\n")
    for line in lines[:-1]:
        if not line.startswith(_PREFIXES) or len(line) > _MOST_LINE:
            continue
        if (match := _LINE.match(line)) is None:
            continue
        labels = dict(_LABEL.findall(match[2] or ""))
        if any(labels.get(name, once) != once for name, once in _ONCE.items()):
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        if isfinite(value):
            yield match[1], labels.get("model_name", ""), value
