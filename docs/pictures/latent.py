"""Draw a chat on latents: a tiny model of DeepSeek-V3's shape and random weights, at the real interface.

    python docs/pictures/latent.py

It has the starter's tokenizer and template, so it answers in the starter's words and says nothing. One
picture shows exact latents, one 8-bit records; the sessions of the runs are thrown away.
"""

import asyncio
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import transformers
from make import SIZE, Person

from kvchat.app.composition import opened, start_worker
from kvchat.app.config import read_settings
from kvchat.app.engine_swap import EngineSwap
from kvchat.app.interface_host import InterfaceHost
from kvchat.ui.app import KvchatApp

STARTER = Path(__file__).parents[2] / "kvchat" / "starter" / "model"
TALK = ("Hello! My name is Ana.", "What is a latent?", "What is a rope key?", "What is my name?")
PICTURES = {"exact": "latent", "fp8": "latent-fp8"}


def write_model(model_dir: Path) -> None:
    """Write a model with the layers of DeepSeek-V3, few and narrow."""
    model_dir.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(STARTER / name, model_dir)
    starter = transformers.AutoConfig.from_pretrained(STARTER)
    torch.manual_seed(0)
    config = transformers.DeepseekV3Config(
        vocab_size=starter.vocab_size,
        hidden_size=256,
        intermediate_size=512,
        moe_intermediate_size=128,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=8,
        n_routed_experts=8,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=1,
        q_lora_rank=96,
        kv_lora_rank=512,
        qk_rope_head_dim=64,
        qk_nope_head_dim=128,
        v_head_dim=96,
        max_position_embeddings=4096,
        eos_token_id=None,
    )
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(model_dir)


async def draw(model_dir: Path, home: Path, cache_format: str) -> None:
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
            await person.commands("/title Talk to a latent model")
            await person.commands("/fork again")
            await person.says("And once more?")
            await person.looks(PICTURES[cache_format])


def main() -> None:
    transformers.utils.logging.set_verbosity_error()
    with TemporaryDirectory(prefix="kvchat-pictures-") as home:
        model_dir = Path(home) / "deepseek-v3-tiny"
        write_model(model_dir)
        for cache_format in PICTURES:
            asyncio.run(draw(model_dir, Path(home) / cache_format, cache_format))


if __name__ == "__main__":
    main()
