"""Model directories of a few bytes, for everything that looks at a model before loading it."""

import json
import os
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 8,
    "rope_theta": 10000.0,
    "transformers_version": "5.0.0",
    "_name_or_path": "here",
}


def weights(seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {name: random.standard_normal((8, 8)).astype(np.float32) for name in ("first", "second")}


def write_config(model_dir: Path, **changes: object) -> None:
    (model_dir / "config.json").write_text(json.dumps(CONFIG | changes))


def write_model(model_dir: Path, seed: int = 0) -> Path:
    model_dir.mkdir(parents=True, exist_ok=True)
    write_config(model_dir)
    save_file(weights(seed), model_dir / "model.safetensors")
    return model_dir


def write_adapter(adapter_dir: Path, seed: int = 0, **changes: object) -> Path:
    """Write what looks like a LoRA from outside."""
    adapter_dir.mkdir()
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "base_model_name_or_path": "here"}
    (adapter_dir / "adapter_config.json").write_text(json.dumps(config | changes))
    save_file(weights(seed), adapter_dir / "adapter_model.safetensors")
    return adapter_dir


def write_sharded_model(model_dir: Path, names: tuple[str, str]) -> Path:
    """Write the weights in two files, the index naming them in the given order."""
    model_dir.mkdir(parents=True, exist_ok=True)
    write_config(model_dir)
    tensors = weights()
    for tensor, name in zip(tensors, names, strict=True):
        save_file({tensor: tensors[tensor]}, model_dir / name)
    index = {"metadata": {}, "weight_map": dict(zip(tensors, names, strict=True))}
    (model_dir / "model.safetensors.index.json").write_text(json.dumps(index))
    return model_dir


def perturb(path: Path) -> None:
    """Change one weight in place and give the file back its old mtime."""
    times = path.stat()
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    with open(path, "r+b") as file:
        file.write(data)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
