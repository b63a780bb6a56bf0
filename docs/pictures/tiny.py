"""Draw chats on tiny models of random weights at the real interface: latents as in DeepSeek-V3, exact and in
8-bit records, and recurrent layers as in Qwen3.5.

    python docs/pictures/tiny.py

They have the starter's tokenizer and template, so they answer in the starter's words and say nothing. The
sessions of the runs are thrown away.
"""

import asyncio
import shutil
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers
from make import SIZE, Person

from kvchat.app.composition import opened, start_worker
from kvchat.app.config import read_settings
from kvchat.app.engine_swap import EngineSwap
from kvchat.app.interface_host import InterfaceHost
from kvchat.ui.app import KvchatApp

STARTER = Path(__file__).parents[2] / "kvchat" / "starter" / "model"
TALK = ("Hello! My name is Ana.", "What is a block?", "What is a cache key?", "What is my name?")
LATENT = {
    "model_type": "deepseek_v3",
    "moe_intermediate_size": 128,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "q_lora_rank": 96,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 96,
}
HYBRID = {
    "model_type": "qwen3_5_text",
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "layer_types": [*["linear_attention"] * 3, "full_attention"] * 2,
}
PICTURES = (("latent", LATENT, "exact"), ("latent-fp8", LATENT, "fp8"), ("hybrid", HYBRID, "exact"))


def write_model(model_dir: Path, sizes: Mapping[str, Any]) -> None:
    """Write a model of 8 narrow layers that has the starter's vocabulary."""
    model_dir.mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(STARTER / name, model_dir)
    starter = transformers.AutoConfig.from_pretrained(STARTER)
    torch.manual_seed(0)
    config = transformers.CONFIG_MAPPING[sizes["model_type"]](
        vocab_size=starter.vocab_size,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=8,
        max_position_embeddings=4096,
        eos_token_id=None,
        **{name: value for name, value in sizes.items() if name != "model_type"},
    )
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(model_dir)


async def draw(name: str, model_dir: Path, home: Path, cache_format: str) -> None:
    flags: dict[str, object] = {
        "paths.data_dir": home / "data",
        "paths.cache_dir": home / "cache",
        "engine.cache_format": cache_format,
        "sampling.max_tokens": 24,
        "sampling.temperature": 0.0,
    }
    settings = read_settings(flags)
    with opened(settings, start_worker) as kvchat:
        chat = kvchat.load(None, str(model_dir))
        host = InterfaceHost(settings, kvchat, chat, EngineSwap())
        app = KvchatApp(chat, kvchat.engine, host, None, log_path=home / "log")
        async with app.run_test(size=SIZE) as pilot:
            person = Person(app, pilot)
            await person.waits_for_the_model()
            for message in TALK:
                await person.says(message)
            await person.commands(f"/title Talk to a {name.partition('-')[0]} model")
            await person.commands("/fork again")
            await person.says("And once more?")
            await person.looks(name)
            if name == "hybrid":
                await person.presses("f7")
                await person.waits_for("Blocks of")
                await person.presses("down", "down", "down")
                await person.looks("hybrid-blocks")


def main() -> None:
    transformers.utils.logging.set_verbosity_error()
    with TemporaryDirectory(prefix="kvchat-pictures-") as home:
        for name, sizes, cache_format in PICTURES:
            model_dir = Path(home) / name / f"{sizes['model_type'].replace('_', '-')}-tiny"
            write_model(model_dir, sizes)
            asyncio.run(draw(name, model_dir, Path(home) / name / "home", cache_format))


if __name__ == "__main__":
    main()
