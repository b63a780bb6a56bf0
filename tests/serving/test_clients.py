"""Published clients, unmodified: OpenAI's own, and `llm`."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import AuthenticationError, BadRequestError, NotFoundError, OpenAI
from openai.types.chat import ChatCompletionMessageParam

from tests.serving.conftest import KEY, REPLY, Served

pytestmark = [pytest.mark.pure, pytest.mark.long]

HELLO: list[ChatCompletionMessageParam] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello"},
]


@pytest.fixture
def client(served: Served) -> Iterator[OpenAI]:
    with OpenAI(base_url=served.server.url, api_key=KEY, max_retries=0) as client:
        yield client


def test_a_completion_has_text_reason_and_what_was_cached(client: OpenAI, served: Served) -> None:
    answer = client.chat.completions.create(model="kvchat", messages=HELLO)
    assert answer.choices[0].message.content == REPLY
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(served.engine.requests[0].token_ids)
    assert answer.usage.completion_tokens == len(served.ids_of(REPLY))
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 0
    assert answer.model == "scripted"


def test_a_stream_comes_in_pieces_and_ends_with_its_usage_if_that_is_wanted(client: OpenAI) -> None:
    stream = client.chat.completions.create(
        model="scripted", messages=HELLO, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(pieces) == REPLY
    assert len([piece for piece in pieces if piece]) > 3
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].usage is not None
    assert not chunks[-1].choices
    assert len({chunk.id for chunk in chunks}) == 1
    plain = list(client.chat.completions.create(model="kvchat", messages=HELLO, stream=True))
    assert all(chunk.usage is None for chunk in plain)


def test_the_next_question_continues_the_very_tokens_of_the_answer(client: OpenAI, served: Served) -> None:
    """Trap 29: an answer's text, encoded again, has other ids."""
    # Letter by letter, as no tokenizer would encode it.
    ids = [token for letter in "Hello" for token in served.template.tokenizer.encode(letter)]
    served.ids_of = lambda reply: [*ids, min(served.template.end_ids)]  # type: ignore[method-assign]
    first = client.chat.completions.create(model="kvchat", messages=HELLO)
    said: list[ChatCompletionMessageParam] = [
        *HELLO,
        {"role": "assistant", "content": first.choices[0].message.content},
        {"role": "user", "content": "And now?"},
    ]
    client.chat.completions.create(model="kvchat", messages=said)
    before, after = served.engine.requests
    seen = (*before.token_ids, *ids, min(served.template.end_ids))
    assert after.token_ids[: len(seen)] == seen
    # What was never said here is encoded from its text.
    said[2] = {"role": "assistant", "content": "Something else."}
    client.chat.completions.create(model="kvchat", messages=said)
    other = served.engine.requests[2].token_ids
    assert other[: len(before.token_ids)] == before.token_ids
    assert other[: len(seen)] != seen


def test_sampling_and_limits_reach_the_engine(client: OpenAI, served: Served) -> None:
    answer = client.chat.completions.create(
        model="kvchat",
        messages=HELLO,
        max_tokens=3,
        temperature=0.5,
        top_p=0.9,
        seed=7,
        extra_body={"top_k": 5, "repetition_penalty": 1.1},
    )
    assert answer.choices[0].finish_reason == "length"
    sampling = served.engine.requests[0].sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.seed) == (3, 0.5, 0.9, 7)
    assert (sampling.top_k, sampling.repetition_penalty) == (5, 1.1)


def test_stop_strings_end_the_text_before_them(client: OpenAI, served: Served) -> None:
    answer = client.chat.completions.create(model="kvchat", messages=HELLO, stop=["answer", "no"])
    assert answer.choices[0].message.content == REPLY.partition("answer")[0]
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens < len(served.ids_of(REPLY))


def test_refusals_are_the_errors_that_the_client_knows(client: OpenAI, served: Served) -> None:
    with pytest.raises(NotFoundError, match="scripted"):
        client.chat.completions.create(model="gpt-9", messages=HELLO)
    with pytest.raises(BadRequestError, match="n is not supported"):
        client.chat.completions.create(model="kvchat", messages=HELLO, n=2)
    with pytest.raises(BadRequestError, match="shorten it") as caught:
        client.chat.completions.create(model="kvchat", messages=[{"role": "user", "content": "a " * 3000}])
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(AuthenticationError):
        OpenAI(base_url=served.server.url, api_key="another", max_retries=0).models.list()


def test_the_model_is_listed(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["scripted"]
    assert client.models.retrieve("scripted").id == "scripted"
    with pytest.raises(NotFoundError):
        client.models.retrieve("gpt-9")


def test_llm_talks_to_it(served: Served, tmp_path: Path) -> None:
    (tmp_path / "extra-openai-models.yaml").write_text(
        f"- model_id: local\n  model_name: kvchat\n  api_base: {served.server.url}\n  api_key_name: kvchat\n"
    )
    command = [sys.executable, "-W", "ignore", "-m", "llm", "-m", "local", "--key", KEY, "Hello"]
    environ = os.environ | {"LLM_USER_PATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)
    assert done.stdout.strip() == REPLY, done.stderr
    again = subprocess.run(
        [*command[:-1], "-c", "And now?"], capture_output=True, text=True, env=environ, check=False
    )
    assert again.stdout.strip() == REPLY, again.stderr
    first, second = served.engine.requests
    assert second.token_ids[: len(first.token_ids)] == first.token_ids
