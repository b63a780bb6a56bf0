"""Files of tiny recurrent models give the tokens and logits that llama.cpp computes from them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from kvchat.engine.models.checkpoints.gguf_file import open_gguf
from kvchat.engine.models.checkpoints.gguf_to_hf import write_converted
from kvchat.engine.models.load import load_model
from tests.engine.models import gguf_recurrent
from tests.engine.models.gguf_writer import tiny, write_gguf

pytestmark = [pytest.mark.cpu, pytest.mark.slow]

PROMPT = [number * 7 % 60 + 2 for number in range(40)]
NUM_TOKENS = 24
SAME_NORMS = {"rms_norm_eps": 1e-6}
"""With what transformers normalizes queries and keys of delta nets; llama.cpp takes what other norms have."""


@pytest.mark.parametrize("kind", gguf_recurrent.KINDS)
def test_greedy_tokens_are_those_of_llama_cpp(kind: str, tmp_path: Path) -> None:
    llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    path, made = tmp_path / "model.gguf", tmp_path / "made"
    made.mkdir()
    write_gguf(tiny(kind, **SAME_NORMS if kind.startswith("qwen3") else {}), path, kind, Kind.F32)
    write_converted(open_gguf(path), made, lambda _: None)
    module = load_model(made, "float32", torch.device("cpu")).module
    f32 = llama_cpp.GGML_TYPE_F32
    model = llama_cpp.Llama(
        str(path), n_ctx=128, n_threads=1, logits_all=True, type_k=f32, type_v=f32, verbose=False
    )
    ids = list(PROMPT)
    model.eval(ids)
    for _ in range(NUM_TOKENS):
        ids.append(int(model.scores[len(ids) - 1].argmax()))
        model.eval(ids[-1:])
    expected = torch.from_numpy(np.array(model.scores[: len(ids)]))
    with torch.inference_mode():
        found = module(torch.tensor([ids])).logits[0]
    assert torch.equal(found[len(PROMPT) - 1 : -1].argmax(-1), torch.tensor(ids[len(PROMPT) :]))
    assert float((found - expected).abs().max() / expected.abs().max()) < 1e-3
