"""`kvchat serve` as a whole process, with a real engine."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam

from kvchat.cli.main import run

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
        done = subprocess.run(
            [sys.executable, "-m", "kvchat", "ask", "--json", "Hello! My name is Ana."],
            capture_output=True,
            text=True,
            check=True,
            stdin=subprocess.DEVNULL,
        )
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 143
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
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [sys.executable, "-m", "kvchat", "serve", "-q", "-m", "starter", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        url, key_file = told["url"], home / "run" / "api-key"
        assert (told["model"], told["api_key_file"]) == ("starter", str(key_file))
        at = ["--remote", url, "--remote-key-file", str(key_file), "--json"]
        answers = []
        for words in (["--new", "talk", "Hello! My name is Ana."], ["-s", "talk", "What is my name?"]):
            assert run(["ask", *at, *words]) == 0
            answers.append(json.loads(capsys.readouterr().out)["usage"])
        assert run(["cache", "status", *at]) == 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 143
    server = json.loads(capsys.readouterr().out)["server"]
    assert server["hit_tokens"] == answers[1]["cached_tokens"] > 0
    assert server["asked_tokens"] == sum(usage["prompt_tokens"] for usage in answers)
    assert server["hit_rate"] == server["hit_tokens"] / server["asked_tokens"]
    assert 0 <= server["usage"] < 1
    assert (server["num_running"], server["num_waiting"], server["host_usage"]) == (0, 0, None)
    assert server["problem"] is None


def test_missing_packages_are_told_before_a_model_is_loaded() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_UVICORN], capture_output=True, text=True, env=os.environ, check=False
    )
    assert done.returncode == 3
    assert "pip install 'kvchat[serve]'" in done.stderr


def test_a_key_file_that_is_not_there_exits_3(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "--api-key-file", "no-such-file"]) == 3
    assert "no-such-file" in capsys.readouterr().err
