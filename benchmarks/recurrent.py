"""Hybrid models on the processor beside other engines, and their states on disk.

Random weights in the shapes of Qwen3.5-0.8B and LFM2-1.2B, and of some layers and experts of Qwen3-Next-80B,
with small vocabularies; states alone in that of Qwen3.5-4B. llama.cpp takes part where `--llama-cpp PYTHON`
names an interpreter that has `llama-cpp-python`, and OpenVINO where `--openvino PYTHON` names one that has
`optimum-intel`; neither beside experts.
"""

import gc
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, Protocol

import torch
import transformers

from benchmarks.block_store import block_store
from benchmarks.cpu.bounds import Bounds
from benchmarks.cpu.process import EngineProcess
from benchmarks.resume import BYTE_ROUNDS, disk_rows
from benchmarks.saving import Session, loss_rows
from benchmarks.table import Row, seconds
from kvchat.engine import Engine, EngineConfig, SamplingParams
from kvchat.engine.api.events import TokenEmitted
from kvchat.engine.api.request import Request
from kvchat.engine.formats.full.spec import FullSpec
from kvchat.engine.formats.recurrent.spec import StateTensor, state_spec

CONTEXTS = (512, 4_000)
NUM_TOKENS = 16
ROUNDS = 2
VOCAB_SIZE = 32_000
WEIGHTS = {"auto": ("F16",), "int8": ("Q8_0",), "int4": ("Q4_0",)}
"""Ours, as in the file or quantised, and llama.cpp's files of the same bits. BF16 is slower there."""
BITS = {"auto": "16", "int8": "8", "int4": "4"}
NUMBER_BYTES = {"auto": 2.0, "int8": 1.0625, "int4": 0.5625}
"""Bytes of a weight, with its share of a scale."""
GGUF_KINDS = {"Qwen3.5-0.8B": "qwen35", "LFM2-1.2B": "lfm2"}
_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
}
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "Qwen3.5-0.8B": (
        "qwen3_5_text",
        {
            "hidden_size": 1024,
            "intermediate_size": 3584,
            "num_hidden_layers": 24,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "head_dim": 256,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 16,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "layer_types": [*["linear_attention"] * 3, "full_attention"] * 6,
        },
    ),
    "LFM2-1.2B": (
        "lfm2",
        {
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "block_auto_adjust_ff_dim": False,
            "num_hidden_layers": 16,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "full_attn_idxs": [2, 5, 8, 10, 12, 14],
        },
    ),
    "Qwen3-Next, 8 layers, 64 experts": (
        "qwen3_next",
        {
            "hidden_size": 2048,
            "num_hidden_layers": 8,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "head_dim": 256,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 32,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "layer_types": [*["linear_attention"] * 3, "full_attention"] * 2,
            "num_experts": 64,
            "num_experts_per_tok": 10,
            "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512,
        },
    ),
}


def measure(*, quick: bool = False, llama_cpp: Path | None = None, openvino: Path | None = None) -> list[Row]:
    """Args:
    llama_cpp: an interpreter that has llama-cpp-python; None: no comparison with it.
    openvino: the same of optimum-intel.
    """
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    rows = []
    contexts = CONTEXTS[: 1 if quick else None]
    for name in list(SHAPES)[: 1 if quick else None]:
        with TemporaryDirectory() as directory:
            model_dir = _saved(name, Path(directory, "model"))
            has_peers = name in GGUF_KINDS and (llama_cpp or openvino)
            for weights in WEIGHTS if has_peers else ("auto",):
                rows += _shape(name, model_dir, contexts, weights, llama_cpp, openvino)
            ids = torch.arange(1, 1 + contexts[-1]).tolist()
            rows += _resumed(name, model_dir, ids)
            rows += _saved_beside(name, model_dir)
    return rows + _stored()


def _stored() -> list[Row]:
    """Compare a state's way to disk and back, with its conversation, with a file of the same bytes."""
    tensors = [StateTensor("conv", 0, "BF16", (8192, 4)), StateTensor("rec", 0, "F32", (32, 128, 128))]
    attention = FullSpec(num_kv_heads=4, head_dim_k=256, head_dim_v=256, dtype="BF16")
    specs = {number: attention if number % 4 == 3 else state_spec(tensors, 1) for number in range(32)}
    with block_store(specs) as stored:
        rows = disk_rows(stored)
        ours, plain = [], []
        for _ in range(BYTE_ROUNDS):
            header, payload = list(stored.blocks())[-1]
            stored.store.remove(header.key, header.group)
            ours.append(len(payload) / 1e6 / seconds(partial(stored.store.write, [(header, payload)])))
            plain.append(len(payload) / 1e6 / seconds(partial(_write_plain, stored.plain, payload)))
    about = f"Qwen3.5-4B, {len(stored.token_ids):,} tokens and a state"
    return [
        *(replace(row, name=f"{about}: {row.name}") for row in rows),
        Row.of("its state, to disk", "MB/s", ours),
        Row.of("  beside a file of the same bytes", "x", [a / b for a, b in zip(ours, plain, strict=True)]),
    ]


def _write_plain(path: Path, payload: bytearray) -> None:
    with path.open("wb") as file:
        file.write(payload)
        file.flush()
        os.fsync(file.fileno())


def _saved_beside(name: str, model_dir: Path) -> list[Row]:
    engine = Engine.load(str(model_dir), _config(model_dir))
    rows = loss_rows(Session(engine), ROUNDS)
    engine.close()
    return [replace(row, name=f"{name}: {row.name}") for row in rows]


def _saved(name: str, directory: Path) -> Path:
    model_type, sizes = SHAPES[name]
    torch.manual_seed(0)
    config = transformers.CONFIG_MAPPING[model_type](**_COMMON | sizes)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(directory)
    return directory


def _shape(
    name: str,
    model_dir: Path,
    contexts: Sequence[int],
    weights: str,
    llama_cpp: Path | None = None,
    openvino: Path | None = None,
) -> list[Row]:
    """Measure all in turn. They share the machine's memory, but never its processor."""
    engine = Engine.load(str(model_dir), _config(model_dir, weights))
    bounds = Bounds(torch.get_num_threads())
    num_weights = sum(path.stat().st_size for path in model_dir.glob("*.safetensors")) / 2 - _num_idle(name)
    peers: dict[str, Peer] = {"transformers": _Transformers(model_dir)} if weights == "auto" else {}
    if llama_cpp is not None and name in GGUF_KINDS:
        peers |= {
            f"llama.cpp {kind}": _LlamaCpp(name, model_dir, kind, llama_cpp) for kind in WEIGHTS[weights]
        }
    if openvino is not None and name in GGUF_KINDS:
        peers["OpenVINO"] = _OpenVino(model_dir, weights, openvino)
    rows = []
    for length in contexts:
        ours: list[tuple[float, float]] = []
        theirs: dict[str, list[tuple[float, float]]] = {peer: [] for peer in peers}
        read_bytes_per_s: list[float] = []
        num_warm = int(length == contexts[0])  # rounds that are not counted
        for number in range(num_warm + ROUNDS):
            ids = torch.randint(1, VOCAB_SIZE, (length,), generator=torch.Generator().manual_seed(number))
            for peer, one in peers.items():
                theirs[peer].append(one.answer(ids))
            ours.append(_answer(engine, ids.tolist()))
            read_bytes_per_s.append(bounds.read_bytes_per_s())
        for at, what in enumerate(("prefill", "decode")):
            speeds = [(length, NUM_TOKENS)[at] / own[at] for own in ours[num_warm:]]
            bits = "" if weights == "auto" else f", {weights}"
            rows.append(Row.of(f"{name}{bits}, {what} at {length:,}", "tokens/s", speeds))
            for peer, found in theirs.items():
                ratios = [
                    there[at] / own[at] for own, there in zip(ours[num_warm:], found[num_warm:], strict=True)
                ]
                rows.append(Row.of(f"  kvchat / {peer}", "x", ratios))
        read = num_weights * NUMBER_BYTES[weights] * NUM_TOKENS
        shares = [
            read / own[1] / most
            for own, most in zip(ours[num_warm:], read_bytes_per_s[num_warm:], strict=True)
        ]
        rows.append(Row.of("  share of the bound: weights read once a token", "x", shares))
    for one in peers.values():
        one.close()
    del peers
    engine.close()
    gc.collect()
    return rows


def _num_idle(name: str) -> int:
    """Return how many weights a token does not use: those of the other experts."""
    _, sizes = SHAPES[name]
    num_idle = sizes.get("num_experts", 0) - sizes.get("num_experts_per_tok", 0)
    return (
        num_idle
        * sizes["num_hidden_layers"]
        * 3
        * sizes.get("moe_intermediate_size", 0)
        * sizes["hidden_size"]
    )


def _config(model_dir: Path, weights: str = "auto") -> EngineConfig:
    cache_dir = model_dir.parent / "cache"
    # Random weights repeat themselves, and drafts of that would be right as no text's are.
    return EngineConfig(
        device="cpu", device_bytes=1 << 30, cache_dir=cache_dir, weights=weights, speculate="off"
    )


class Peer(Protocol):
    def answer(self, ids: torch.Tensor) -> tuple[float, float]:
        """Return the seconds of a prompt, and of the tokens behind it."""
        ...

    def close(self) -> None: ...


class _OtherProcess:
    """An engine in a process of its own."""

    _process: EngineProcess

    def answer(self, ids: torch.Tensor) -> tuple[float, float]:
        length = len(ids)
        prompt_s = self._process.ask(do="prefill", length=length)["seconds"]
        return prompt_s, self._process.ask(do="decode", length=length, tokens=NUM_TOKENS, batch=1)["seconds"]

    def close(self) -> None:
        self._process.close()


class _OpenVino(_OtherProcess):
    """The model's own directory, exported by optimum-intel."""

    def __init__(self, model_dir: Path, weights: str, python: Path) -> None:
        settings = {"bits": BITS[weights], "threads": torch.get_num_threads(), "vocab_size": VOCAB_SIZE}
        self._process = EngineProcess("openvino_engine", model_dir, settings, str(python))


class _LlamaCpp(_OtherProcess):
    """A file of the model in a process of llama.cpp."""

    def __init__(self, name: str, model_dir: Path, kind: str, python: Path) -> None:
        # From the tests: it is they who know how llama.cpp's converter writes these models.
        from gguf import GGMLQuantizationType

        from tests.engine.models.gguf_writer import write_gguf

        path = model_dir.parent / f"{kind}.gguf"
        model = transformers.AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
        write_gguf(model, path, GGUF_KINDS[name], GGMLQuantizationType[kind])
        settings = {"max_context": 4_200, "threads": torch.get_num_threads(), "vocab_size": VOCAB_SIZE}
        self._process = EngineProcess("llama_cpp_engine", path, settings, str(python))


class _Transformers:
    """The model's own forward pass and cache."""

    def __init__(self, model_dir: Path) -> None:
        self._model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            model_dir, dtype=torch.bfloat16, attn_implementation="sdpa"
        ).eval()

    @torch.inference_mode()
    def answer(self, ids: torch.Tensor) -> tuple[float, float]:
        """Return the seconds of a prompt, and of the tokens behind it."""
        start_s = perf_counter()
        out = self._model(ids[None], use_cache=True, logits_to_keep=1)
        prompt_s = perf_counter() - start_s
        for _ in range(NUM_TOKENS):
            token = out.logits[:, -1:].argmax(-1)
            out = self._model(token, past_key_values=out.past_key_values, use_cache=True)
        return prompt_s, perf_counter() - start_s - prompt_s

    def close(self) -> None:
        del self._model


def _answer(engine: Engine, ids: Sequence[int]) -> tuple[float, float]:
    sampling = SamplingParams(max_tokens=NUM_TOKENS + 1, ignore_eos=True)
    start_s = perf_counter()
    handle = engine.submit(Request(token_ids=tuple(ids), sampling=sampling))
    times = [perf_counter() - start_s for event in handle if isinstance(event, TokenEmitted)]
    engine.release(handle.sequence)
    return times[0], times[-1] - times[0]


def _resumed(name: str, model_dir: Path, ids: Sequence[int]) -> list[Row]:
    """Measure the first token of a stored prompt after a restart."""
    load_s, found = [], 0
    for number in range(ROUNDS + 1):  # the first stores it
        engine = Engine.load(str(model_dir), _config(model_dir))
        start_s = perf_counter()
        handle = engine.submit(Request(token_ids=tuple(ids), sampling=SamplingParams(max_tokens=1)))
        first_s = [perf_counter() - start_s for event in handle if isinstance(event, TokenEmitted)]
        load_s += first_s if number else []
        assert handle.result is not None
        found = handle.result.usage.cached_tokens
        engine.close()
    return [Row.of(f"{name}, {len(ids):,} tokens after a restart", "s", load_s, f"{found:,} reused")]
