"""`kvchat serve` as a whole process, with a real engine; all but one of them forked."""

import json
import signal
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


def test_other_programs_talk_to_the_engine_leave_it_and_share_its_cache(home: Path) -> None:
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
            for _ in range(5):  # clients that leave while they are answered
                client.chat.completions.create(model="starter", messages=said, stream=True).close()
            assert client.chat.completions.create(model="starter", messages=said).choices == second.choices
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
