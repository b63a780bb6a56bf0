"""Servers that others wrote, unmodified, each in a process of its own.

transformers' server runs in this interpreter where `fastapi` is installed; llama-cpp-python's in the one that
LLAMA_CPP_PYTHON names.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from time import monotonic, sleep

import numpy as np
import pytest
from gguf import GGUFWriter, TokenType

from kvchat.chat.events import TurnFinished
from kvchat.engine.models.locate import locate_model
from kvchat.remote.chat_service import RemoteChat
from kvchat.remote.endpoint import RemoteServer
from kvchat.session.store import SessionStore
from kvchat.session.tree import Finish
from kvchat.text.answer_footer import footer_parts
from tests.patience import PATIENCE_S
from tests.remote.test_remote_chat import answer_of

pytestmark = [pytest.mark.cpu, pytest.mark.slow]

START_S = 600.0
"""A server that does not listen by then never will; on a busy machine its imports alone take minutes."""
LLAMA_CPP = os.environ.get("LLAMA_CPP_PYTHON", "")


@contextmanager
def running(directory: Path, *command: str) -> Iterator[str]:
    """Start a server on a free port, which stands in the command as PORT; give its URL, and end it."""
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    words = [str(port) if word == "PORT" else word for word in command]
    log = (directory / "server.log").open("wb")
    environ = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(directory), "OMP_NUM_THREADS": "1"}
    (directory / "hub").mkdir(exist_ok=True)
    process = subprocess.Popen(words, stdout=log, stderr=log, env=environ)
    try:
        deadline_s = monotonic() + START_S
        while not _listens(port):
            log_so_far = (directory / "server.log").read_text()
            assert process.poll() is None, log_so_far
            assert monotonic() < deadline_s, log_so_far
            sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(PATIENCE_S)
        log.close()


def _listens(port: int) -> bool:
    with closing(socket.socket()) as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def talk_to(url: str, model: str | None, directory: Path) -> None:
    """Ask twice, fork, stop in the middle; the server stays usable."""
    endpoint = RemoteServer(url)
    with closing(SessionStore(directory / "sessions.db")) as store:
        chat = RemoteChat(store=store, endpoint=endpoint, model=model or endpoint.models()[0])
        chat.sampling = chat.sampling.__class__(max_tokens=12)
        conversation = chat.create(system="Be brief.")
        for question in ("What is a KV cache?", "And a block?"):
            answer = answer_of(chat.send(conversation, question))
            assert answer.text
            assert answer.finish in (Finish.COMPLETE, Finish.LENGTH)
        assert footer_parts(answer)[0].startswith("reused unknown")
        fork = chat.fork(conversation, conversation.turns[1].id)
        assert answer_of(chat.send(fork, "Something else")).text
        chat.sampling = chat.sampling.__class__(max_tokens=300)
        events = chat.send(conversation, "Tell me a long story.")
        for number, event in enumerate(events):
            if number == 2:
                chat.stop(conversation)
            last = event
        assert isinstance(last, TurnFinished)
        assert last.error is None
        assert answer_of(chat.retry(fork)).text


@pytest.mark.skipif(find_spec("fastapi") is None, reason="transformers' server needs fastapi")
def test_the_server_of_transformers_answers(tmp_path: Path) -> None:
    """It takes any model by name, and reports no cache."""
    model = str(locate_model("starter").path)
    server = (sys.executable, "-m", "transformers.cli.transformers", "serve", model)
    with running(tmp_path, *server, "--port", "PORT", "--device", "cpu") as url:
        talk_to(url, model, tmp_path)


@pytest.mark.skipif(
    not LLAMA_CPP, reason="LLAMA_CPP_PYTHON names no interpreter with llama-cpp-python[server]"
)
def test_the_server_of_llama_cpp_answers(tmp_path: Path) -> None:
    write_model(tmp_path / "tiny.gguf")
    server = (LLAMA_CPP, "-m", "llama_cpp.server", "--model", str(tmp_path / "tiny.gguf"), "--n_threads", "1")
    with running(tmp_path, *server, "--port", "PORT", "--n_ctx", "1024", "--chat_format", "chatml") as url:
        talk_to(url, None, tmp_path)


def write_model(path: Path, dim: int = 64, num_layers: int = 2) -> None:
    """Write a tiny random Llama that knows every byte."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁"]
    tokens += [chr(letter) for letter in range(33, 127)]
    kinds = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL, *[TokenType.BYTE] * 256]
    kinds += [TokenType.NORMAL] * (len(tokens) - len(kinds))
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(1024)
    writer.add_embedding_length(dim)
    writer.add_block_count(num_layers)
    writer.add_feed_forward_length(2 * dim)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_dimension_count(dim // 4)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    numbers = np.random.default_rng(0)
    shapes = {"token_embd": (len(tokens), dim), "output": (len(tokens), dim)}
    for layer in range(num_layers):
        inner = {"attn_q": (dim, dim), "attn_k": (dim // 2, dim), "attn_v": (dim // 2, dim)}
        inner |= {"attn_output": (dim, dim), "ffn_gate": (2 * dim, dim), "ffn_up": (2 * dim, dim)}
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in inner.items()}
        shapes[f"blk.{layer}.ffn_down"] = (dim, 2 * dim)
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", numbers.normal(0, 0.15, shape).astype(np.float32))
    for norm in (
        "output_norm",
        *(f"blk.{layer}.{n}_norm" for layer in range(num_layers) for n in ("attn", "ffn")),
    ):
        writer.add_tensor(f"{norm}.weight", np.ones(dim, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
