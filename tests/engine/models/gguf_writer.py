"""Tiny models as GGUF files, written with llama.cpp's own library as its converter writes them."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType, GGUFWriter, dequantize, quants
from gguf.tensor_mapping import get_tensor_name_map

from kvchat.engine.models.checkpoints.gguf_file import ARCHITECTURES
from tests.engine.models import gguf_recurrent

ALPHABET = "abcdefghijklmnopqrstuvwxyz"
_BLOCK = 32
_SIZES: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 512,
    "initializer_range": 0.1,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": 1,
}
_CLASSES = {
    "llama": transformers.LlamaConfig,
    "qwen2": transformers.Qwen2Config,
    "qwen3": transformers.Qwen3Config,
    "phi3": transformers.Phi3Config,
    "gemma2": transformers.Gemma2Config,
    "gemma3": transformers.Gemma3TextConfig,
    "lfm2": transformers.Lfm2Config,
}
ATTENTION = tuple(_CLASSES)
"""Kinds without recurrent layers, but for short convolutions."""


def tiny(kind: str, **changes: Any) -> Any:
    """Return a tiny random model of a kind, with biases and norms that matter."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(_config(kind, changes), dtype=torch.float32)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            if tensor.dim() == 1:
                tensor.add_(torch.randn_like(tensor) * 0.1)
    return model.eval()


def _config(kind: str, changes: dict[str, Any]) -> Any:
    if kind in gguf_recurrent.KINDS:
        model_type, sizes = gguf_recurrent.KINDS[kind]
        shared = {name: value for name, value in _SIZES.items() if name not in gguf_recurrent.WITHOUT[kind]}
        return transformers.AutoConfig.for_model(model_type, **shared | sizes | changes)
    sizes = dict(_SIZES)
    if kind == "lfm2":
        sizes |= {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False}
        sizes |= {"norm_eps": 1e-2}
        del sizes["head_dim"]
    return _CLASSES[kind](**sizes | changes)


def write_gguf(
    model: Any, path: Path, kind: str, quantized: GGMLQuantizationType, factors: list[float] | None = None
) -> dict[str, torch.Tensor]:
    """Write a model, and return its weights as whoever reads the file must find them, by their names here.

    Blocks of a row stay whole where the converter moves rows and columns, so that a weight may be quantized
    before or after.
    """
    architecture = gguf_recurrent.architecture(kind)
    writer = GGUFWriter(path, architecture)
    if kind in gguf_recurrent.KINDS:
        gguf_recurrent.write_header(writer, kind, model.config)
    else:
        _write_header(writer, model.config)
    _write_tokenizer(writer, model.config.vocab_size)
    names = get_tensor_name_map(ARCHITECTURES[architecture], model.config.num_hidden_layers)
    expected = {}
    kept = model.state_dict().keys()
    buffers = [(name, buffer) for name, buffer in model.named_buffers() if name in kept]
    for name, parameter in (*model.named_parameters(), *buffers):
        stem, _, last = name.rpartition(".")
        numbers = parameter.detach().numpy()
        if kind in gguf_recurrent.KINDS:
            tensors = gguf_recurrent.as_llama_cpp(kind, model.config, name, numbers)
        else:
            tensors = {None: _as_llama_cpp(kind, name, numbers, model.config)}
        for there, tensor in tensors.items():
            named = f"{names.get_name(stem)}.{last}" if there is None else there
            if _is_quantized(named, tensor):
                writer.add_tensor(named, quants.quantize(tensor, quantized), raw_dtype=quantized)
                numbers = dequantize(quants.quantize(parameter.detach().numpy(), quantized), quantized)
            else:
                writer.add_tensor(named, np.ascontiguousarray(tensor))
        expected[name] = torch.from_numpy(numbers.copy())
    if factors is not None:
        writer.add_tensor("rope_freqs.weight", np.array(factors, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return expected


def _is_quantized(name: str, numbers: np.ndarray) -> bool:
    """Vectors, norms, convolutions and routers stay whole, and so does what makes no blocks."""
    is_spared = any(part in name for part in ("norm", "conv", "ffn_gate_inp", "ssm_a"))
    return numbers.ndim > 1 and numbers.shape[-1] % _BLOCK == 0 and not is_spared


def _as_llama_cpp(kind: str, name: str, numbers: np.ndarray, config: Any) -> np.ndarray:
    """Return a parameter as llama.cpp's converter changes it (convert_hf_to_gguf.py)."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    count = next((heads[part] for part in heads if f".{part}." in name), None)
    if kind == "llama" and count is not None:
        return gguf_recurrent.permute(numbers, count)
    if name.endswith("conv.conv.weight"):
        return numbers[:, 0]
    return numbers + 1 if kind.startswith("gemma") and "norm" in name else numbers


def _write_header(writer: GGUFWriter, config: Any) -> None:
    writer.add_context_length(config.max_position_embeddings)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    head_dim = getattr(config, "head_dim", config.hidden_size // config.num_attention_heads)
    if config.model_type == "lfm2":
        heads = [config.num_key_value_heads * (kind != "conv") for kind in config.layer_types]
        writer.add_head_count_kv(heads)
        writer.add_shortconv_l_cache(config.conv_L_cache)
        writer.add_layer_norm_rms_eps(config.norm_eps)
    else:
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    theta = config.rope_parameters
    writer.add_rope_freq_base(theta.get("rope_theta") or theta["full_attention"]["rope_theta"])
    if getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)


def _write_tokenizer(writer: GGUFWriter, vocab_size: int) -> None:
    writer.add_vocab_size(vocab_size)
    pieces = ["ab", "cd", *ALPHABET, *ALPHABET.upper(), *"0123456789.,!?'Ġ"]
    tokens = ["<|pad|>", "<|end|>", *pieces]
    tokens += [f"<|{number}|>" for number in range(vocab_size - len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token.startswith("<|") else 1 for token in tokens])
    writer.add_token_merges(["a b", "c d"])
    writer.add_eos_token_id(1)
    writer.add_pad_token_id(0)
    writer.add_chat_template("{% for m in messages %}{{ m['content'] }}<|end|>{% endfor %}")
