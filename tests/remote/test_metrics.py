"""What a server's metrics tell of its cache is read from a real HTTP server; all else is unknown."""

import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvchat.cli.main import run
from kvchat.engine.api.server_cache import ServerCache
from kvchat.errors import RemoteError
from kvchat.remote.endpoint import RemoteServer
from kvchat.remote.metrics import served_cache
from kvchat.remote.null_engine import NullEngine
from kvchat.session.store import SessionStore
from tests.patience import PATIENCE_S, wait_until
from tests.remote.conftest import RawServer

pytestmark = pytest.mark.pure

Raw = Callable[..., RawServer]

VLLM = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="Qwen/Qwen3-0.6B"} 2.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="Qwen/Qwen3-0.6B"} 1.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="Qwen/Qwen3-0.6B"} 0.4225
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{engine="0",model_name="Qwen/Qwen3-0.6B"} 3400.0
# TYPE vllm:prefix_cache_queries_created gauge
vllm:prefix_cache_queries_created{engine="0",model_name="Qwen/Qwen3-0.6B"} 1.785414856271799e+09
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{engine="0",model_name="Qwen/Qwen3-0.6B"} 1204.0
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="0",num_gpu_blocks="1000"} 1.0
# TYPE vllm:iteration_tokens_total histogram
vllm:iteration_tokens_total_bucket{engine="0",le="+Inf",model_name="Qwen/Qwen3-0.6B"} 3.0
"""
TOLD = ServerCache(
    usage=0.4225, hit_rate=1204 / 3400, hit_tokens=1204, asked_tokens=3400, num_running=2, num_waiting=1
)

FIRST_V1 = """\
vllm:gpu_cache_usage_perc{model_name="m"} 0.5
vllm:gpu_prefix_cache_queries_total{model_name="m"} 40.0
vllm:gpu_prefix_cache_hits_total{model_name="m"} 10.0
"""

V0 = """\
vllm:num_requests_running{model_name="m"} 0.0
vllm:num_requests_swapped{model_name="m"} 0.0
vllm:num_requests_waiting{model_name="m"} 0.0
vllm:gpu_cache_usage_perc{model_name="m"} 0.0
vllm:cpu_cache_usage_perc{model_name="m"} 0.0
vllm:cpu_prefix_cache_hit_rate{model_name="m"} -1.0
vllm:gpu_prefix_cache_hit_rate{model_name="m"} 0.8
"""

SGLANG = """\
sglang:num_running_reqs{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 3.0
sglang:num_running_reqs{engine_type="unified",model_name="m",pp_rank="0",tp_rank="1"} 3.0
sglang:num_queue_reqs{model_name="m",priority="",tp_rank="0"} 2.0
sglang:num_queue_reqs{model_name="m",priority="5",tp_rank="0"} 1.0
sglang:token_usage{model_name="m",pp_rank="0",tp_rank="0"} 0.28
sglang:cache_hit_rate{model_name="m",pp_rank="0",tp_rank="0"} 0.007507552643049313
sglang:hicache_host_used_tokens{model_name="m",tp_rank="0"} 4096.0
sglang:hicache_host_total_tokens{model_name="m",tp_rank="0"} 8192.0
"""
COUNTED = """\
sglang:prompt_tokens_total{model_name="m"} 4096.0
sglang:cached_tokens_total{cache_source="device",model_name="m"} 3000.0
sglang:cached_tokens_total{cache_source="host",model_name="m"} 72.0
"""


@pytest.mark.parametrize(
    ("text", "cache"),
    [
        (VLLM, TOLD),
        (FIRST_V1, ServerCache(usage=0.5, hit_rate=0.25)),
        (V0, ServerCache(usage=0.0, host_usage=0.0, hit_rate=0.8, num_running=0, num_waiting=0)),
        (
            SGLANG,
            ServerCache(
                usage=0.28, host_usage=0.5, hit_rate=0.007507552643049313, num_running=3, num_waiting=2
            ),
        ),
        (COUNTED, ServerCache(hit_rate=0.75, hit_tokens=3072, asked_tokens=4096)),
        ("llamacpp:kv_cache_usage_ratio 0.5\nllamacpp:requests_deferred 1\n", None),
    ],
    ids=["vllm", "vllm-first-v1", "vllm-v0", "sglang", "sglang-counters", "llama.cpp"],
)
def test_the_names_of_each_server_are_known(text: str, cache: ServerCache | None) -> None:
    assert served_cache(text) == (cache or ServerCache(usage=0.5, num_waiting=1))


@pytest.mark.parametrize(
    "line",
    [
        "vllm:kv_cache_usage_perc NaN",
        "vllm:kv_cache_usage_perc +Inf",
        "vllm:kv_cache_usage_perc -1",
        "vllm:kv_cache_usage_perc 42.0",
        "vllm:kv_cache_usage_perc",
        "vllm:kv_cache_usage_perc{",
        'vllm:kv_cache_usage_perc{model_name="m} 0.5',
        "vllm:kv_cache_usage_percent 0.5",
        " vllm:kv_cache_usage_perc 0.5",
        "vllm:prefix_cache_hits_total 5\nvllm:prefix_cache_queries_total 4",
        "vllm:prefix_cache_hits_total 1e300\nvllm:prefix_cache_queries_total 1e300",
        "<html>vllm:kv_cache_usage_perc 0.5</html>",
        "",
    ],
)
def test_what_cannot_be_so_is_unknown(line: str) -> None:
    assert served_cache(line + "\n") is None


def test_a_line_that_was_cut_is_not_half_a_number() -> None:
    assert served_cache("vllm:num_requests_running 1\nvllm:num_requests_waiting 12") == ServerCache(
        num_running=1
    )


def is_a_share_or_unknown(cache: ServerCache | None) -> bool:
    """Whether nothing is told but, perhaps, a use between nothing and all."""
    usage = None if cache is None else cache.usage
    return cache is None or (usage is not None and 0 <= usage <= 1 and cache == ServerCache(usage=usage))


@given(text=st.text(st.sampled_from('vlm:kv_cache_usage_perc{}="\\ 0.5\n-e'), max_size=300))
def test_no_text_does_any_harm(text: str) -> None:
    assert is_a_share_or_unknown(served_cache("vllm:kv_cache_usage_perc" + text + "\n"))


class Metrics:
    """A server that tells metrics, and what it was asked for."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.asked: list[tuple[str, str | None]] = []
        told = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                told.asked.append((self.path, self.headers["Authorization"]))
                self.send_response(200 if self.path == "/metrics" else 404)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.end_headers()
                self.wfile.write(told.text.encode())

            def log_message(self, *words: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"
        self._thread = Thread(target=self.server.serve_forever, args=(0.02,))
        self._thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()


@pytest.fixture
def metrics() -> Iterator[Metrics]:
    server = Metrics(VLLM)
    yield server
    server.close()


def test_metrics_lie_beside_the_api_and_are_asked_for_with_the_key(metrics: Metrics) -> None:
    assert served_cache(RemoteServer(metrics.url, "secret").metrics()) == TOLD
    assert served_cache(RemoteServer(metrics.url.removesuffix("/v1")).metrics()) == TOLD
    assert metrics.asked == [("/metrics", "Bearer secret"), ("/metrics", None)]


def test_what_a_server_tells_is_followed_and_forgotten_when_it_tells_no_more(
    store: SessionStore, metrics: Metrics
) -> None:
    engine = NullEngine(RemoteServer(metrics.url), "any", pause_s=0.01)
    assert engine.status().served is None
    engine.watch_cache()

    def usage() -> float | None:
        served = engine.status().served
        return None if served is None else served.usage

    try:
        wait_until(lambda: engine.status().served == TOLD)
        metrics.text = VLLM.replace(" 0.4225", " 0.5")
        wait_until(lambda: usage() == 0.5)
        metrics.text = "nothing\n"
        wait_until(lambda: engine.status().served is None)
        num_asked = len(metrics.asked)
        wait_until(lambda: len(metrics.asked) > num_asked)
        assert engine.status().served is None, "what was told before does not come back"
    finally:
        engine.close()
    assert set(metrics.asked) == {("/metrics", None)}


PLAIN = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n"
BAD_METRICS = [
    b"HTTP/1.1 404 Not Found\r\nConnection: close\r\n\r\n",
    b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nConnection: close\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\nConnection: close\r\n\r\nvllm:kv_cache",
    PLAIN + b"\r\n" + b"vllm:kv_cache_usage_perc 0.5\n" * 200_000,
    b"\x00\xff garbage\r\n\r\n",
    b"",
]


@pytest.mark.parametrize("data", BAD_METRICS, ids=["absent", "moved", "cut", "huge", "garbage", "nothing"])
def test_metrics_that_cannot_be_had_are_unknown(raw: Raw, data: bytes) -> None:
    with pytest.raises(RemoteError, match="/metrics"):
        RemoteServer(raw(data).url).metrics()


@pytest.mark.parametrize("data", [b"", PLAIN, PLAIN + b"\r\n" + VLLM.encode()], ids=["none", "head", "some"])
def test_metrics_that_come_too_slowly_are_given_up_even_where_some_have_come(data: bytes, raw: Raw) -> None:
    server = raw(data, hangs=True)
    with pytest.raises(RemoteError, match="took too long"):
        RemoteServer(server.url).metrics(limit_s=0.2)
    assert server.gone.wait(PATIENCE_S)


@pytest.mark.parametrize("data", [PLAIN, PLAIN + b"\r\n" + VLLM.encode()], ids=["head", "some"])
def test_metrics_that_come_drop_by_drop_are_given_up_too(data: bytes, raw: Raw) -> None:
    server = raw(data, hangs=True, drops=b"x: 1\r\n")
    with pytest.raises(RemoteError, match="took too long"):
        RemoteServer(server.url).metrics(limit_s=0.2)
    assert server.gone.wait(PATIENCE_S)


def test_cache_status_tells_it_in_words_and_as_json(
    tmp_path: Path, metrics: Metrics, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVCHAT_HOME", str(tmp_path / "home"))
    assert run(["cache", "status", "--remote", metrics.url]) == 0
    told = capsys.readouterr().out
    assert f"server  {metrics.url}\n  device    42 %\n  host      unknown\n" in told
    assert "  reused    1,204 of 3,400 · 35 %\n  requests  2 running, 1 waiting\n" in told
    assert run(["cache", "status", "--remote", metrics.url, "--json"]) == 0
    server = json.loads(capsys.readouterr().out)["server"]
    assert (server["usage"], server["host_usage"], server["problem"]) == (0.4225, None, None)
    assert run(["cache", "status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["server"] is None
