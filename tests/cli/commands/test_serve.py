"""`kvchat serve` as a whole process, with a real engine; all but one of them forked."""

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam

from tests.cli.command_line import Run
from tests.cli.printed import run_program, run_python
from tests.fork_server import ForkServer
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.cpu

# `import uvicorn` fails, as where it is not installed.
WITHOUT_UVICORN = """
import sys
sys.modules["uvicorn"] = None
sys.argv[1:1] = ["serve"]
from kvchat.cli.main import main
main()
"""


def test_other_programs_talk_to_the_engine_and_share_its_cache(home: Path) -> None:
    command = [sys.executable, "-m", "kvchat", "serve", "-q", "-m", "starter"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        key = (home / "run" / "api-key").read_text().strip()
        with OpenAI(base_url=url, api_key=key, max_retries=0) as client:
            said: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Hello! My name is Ana."}]
            first = client.chat.completions.create(model="starter", messages=said)
            said.append({"role": "assistant", "content": first.choices[0].message.content})
            said.append({"role": "user", "content": "What is my name?"})
            second = client.chat.completions.create(model="starter", messages=said)
        done = run_program("ask", "--json", "Hello! My name is Ana.")
        assert done.returncode == 0, done.stderr
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=PATIENCE_S) == 143
    assert "Ana" in (second.choices[0].message.content or "")
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    # All but the last sampled token, which was never fed, is found again.
    seen = first.usage.prompt_tokens + first.usage.completion_tokens
    assert second.usage.prompt_tokens_details.cached_tokens == seen - 1
    asked = json.loads(done.stdout)
    assert asked["text"] == first.choices[0].message.content
    assert asked["loaded"]["device"] == asked["usage"]["cached_tokens"] == first.usage.prompt_tokens - 1


def test_what_no_client_should_send_harms_neither_the_engine_nor_its_answers(
    home: Path, fork_server: ForkServer
) -> None:
    with fork_server.start("serve", "-q", "-m", "starter") as process:
        url = process.stdout.readline().strip()
        key = (home / "run" / "api-key").read_text().strip()
        said: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Hello! My name is Ana."}]

        def answer() -> str | None:
            with OpenAI(base_url=url, api_key=key, max_retries=0) as client:
                return (
                    client.chat.completions.create(model="kvchat", messages=said).choices[0].message.content
                )

        before = answer()
        port = int(url.rpartition(":")[2].partition("/")[0])
        statuses = [_status_of(port, *one) for one in _hostile(key, said)]
        assert statuses == [403, 403, 401, 400, 400, 400, 400, 404]
        for _ in range(5):  # and those that leave while they are answered
            with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as raw:
                raw.sendall(_request(key, json.dumps({"model": "kvchat", "messages": said, "stream": True})))
                assert raw.recv(12) == b"HTTP/1.1 200"
        assert answer() == before
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=PATIENCE_S) == 143


def _hostile(key: str, said: list[ChatCompletionMessageParam]) -> list[tuple[str, bytes]]:
    """Return requests by what is wrong with them, in the order of the statuses above."""
    good = {"model": "kvchat", "messages": said}
    ask = json.dumps(good)
    return [
        ("host", _request(key, ask).replace(b"localhost", b"evil.example")),
        ("origin", _request(key, ask, "Origin: https://evil.example")),
        ("key", _request("another key", ask)),
        ("no JSON", _request(key, ask[:-1])),
        ("too deep", _request(key, "[" * 100_000)),
        ("types", _request(key, json.dumps(good | {"messages": [[said]]}))),
        ("tools", _request(key, json.dumps(good | {"tools": [{"type": "function"}]}))),
        ("model", _request(key, json.dumps(good | {"model": "../../etc/passwd"}))),
    ]


def _request(key: str, body: str, *headers: str) -> bytes:
    lines = (
        "POST /v1/chat/completions HTTP/1.1",
        "Host: localhost",
        f"Authorization: Bearer {key}",
        f"Content-Length: {len(body.encode())}",
        *headers,
    )
    return ("\r\n".join(lines) + "\r\n\r\n" + body).encode()


def _status_of(port: int, what: str, request: bytes) -> int:
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as raw:
        raw.sendall(request)
        head = raw.recv(12)
    assert head.startswith(b"HTTP/1.1 "), what
    return int(head[9:])


def test_what_its_metrics_tell_of_its_cache_is_shown_where_it_is_the_server(
    home: Path, run: Run, fork_server: ForkServer
) -> None:
    with fork_server.start("serve", "-q", "-m", "starter", "--json") as process:
        told = json.loads(process.stdout.readline())
        url, key_file = told["url"], home / "run" / "api-key"
        assert (told["model"], told["api_key_file"]) == ("starter", str(key_file))
        at = ["--remote", url, "--remote-key-file", str(key_file)]
        asked = (["--new", "talk", "Hello! My name is Ana."], ["-s", "talk", "What is my name?"])
        answers = [run.json("ask", *at, *words)["usage"] for words in asked]
        server = run.json("cache", "status", *at)["server"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=PATIENCE_S) == 143
    assert server["hit_tokens"] == answers[1]["cached_tokens"] > 0
    assert server["asked_tokens"] == sum(usage["prompt_tokens"] for usage in answers)
    assert server["hit_rate"] == server["hit_tokens"] / server["asked_tokens"]
    assert 0 <= server["usage"] < 1
    assert (server["num_running"], server["num_waiting"], server["host_usage"]) == (0, 0, None)
    assert server["problem"] is None


def test_missing_packages_are_told_before_a_model_is_loaded() -> None:
    done = run_python(WITHOUT_UVICORN)
    assert done.returncode == 3
    assert "pip install 'kvchat[serve]'" in done.stderr


def test_a_key_file_that_is_not_there_exits_3(run: Run) -> None:
    assert "no-such-file" in run.err("serve", "--api-key-file", "no-such-file", code=3)
