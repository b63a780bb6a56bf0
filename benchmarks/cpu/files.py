"""The same random weights as the file that each engine reads."""

import json
from pathlib import Path

import numpy as np
from gguf import MODEL_ARCH, GGMLQuantizationType, GGUFWriter, get_tensor_name_map, quants

from benchmarks.cpu.shapes import Shape

GGUF_KINDS = {"16": GGMLQuantizationType.F16, "8": GGMLQuantizationType.Q8_0, "4": GGMLQuantizationType.Q4_0}


def write_safetensors(shape: Shape, directory: Path) -> Path:
    """Write a transformers checkpoint in bfloat16; nothing if it is there."""
    if (directory / "config.json").is_file():
        return directory
    import torch
    import transformers

    torch.manual_seed(0)
    config = shape.config(eos_token_id=2)
    transformers.utils.logging.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(directory)
    return directory


def write_gguf(shape: Shape, source: Path, bits: str, path: Path) -> Path:
    """Write the checkpoint in `source` as a GGUF file; nothing if it is there."""
    if path.is_file():
        return path
    import torch
    from safetensors.torch import load_file

    writer = GGUFWriter(path.with_suffix(".new"), "llama")
    writer.add_context_length(shape.max_context)
    writer.add_block_count(shape.num_layers)
    writer.add_embedding_length(shape.hidden_size)
    writer.add_feed_forward_length(shape.intermediate_size)
    writer.add_head_count(shape.num_heads)
    writer.add_head_count_kv(shape.num_kv_heads)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_layer_norm_rms_eps(json.loads((source / "config.json").read_text())["rms_norm_eps"])
    writer.add_vocab_size(shape.vocab_size)
    _write_vocabulary(writer, shape)
    names = get_tensor_name_map(MODEL_ARCH.LLAMA, shape.num_layers)
    kind = GGUF_KINDS[bits]
    for name, tensor in load_file(source / "model.safetensors").items():
        stem, _, last = name.rpartition(".")
        numbers = _turned(name, tensor.to(torch.float32).numpy(), shape)
        if numbers.ndim > 1:
            writer.add_tensor(
                f"{names.get_name(stem)}.{last}", quants.quantize(numbers, kind), raw_dtype=kind
            )
        else:
            writer.add_tensor(f"{names.get_name(stem)}.{last}", numbers)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    path.with_suffix(".new").rename(path)
    return path


def _turned(name: str, numbers: np.ndarray, shape: Shape) -> np.ndarray:
    """llama.cpp turns neighbouring numbers of a head, transformers its halves."""
    heads = {".q_proj.": shape.num_heads, ".k_proj.": shape.num_kv_heads}
    count = next((heads[part] for part in heads if part in name), None)
    if count is None:
        return numbers
    return numbers.reshape(count, 2, shape.head_dim // 2, -1).swapaxes(1, 2).reshape(numbers.shape)


def _write_vocabulary(writer: GGUFWriter, shape: Shape) -> None:
    """Name every token; nothing is ever tokenised."""
    writer.add_tokenizer_model("llama")
    tokens = ["<unk>", "<s>", "</s>", *(f"t{number}" for number in range(shape.vocab_size - 3))]
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types([2, 3, 3, *([1] * (len(tokens) - 3))])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
