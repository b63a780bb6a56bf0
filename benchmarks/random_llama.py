"""Llamas of random weights: where reading weights decides, not calling operations."""

import shutil
from pathlib import Path

import torch
import transformers

from tools.starter import MODEL_DIRECTORY

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")


def write_random_llama(directory: Path) -> Path:
    """Write 100 million weights to a directory: 12 layers, 12 query heads on 4 key-value heads, float32."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=12,
        num_attention_heads=12,
        num_key_value_heads=4,
        vocab_size=32000,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        eos_token_id=2,
    )
    transformers.utils.logging.disable_progress_bar()
    transformers.LlamaForCausalLM(config).save_pretrained(directory)
    return directory


def write_random_chat(directory: Path) -> Path:
    """Write the 32 layers of a model of 360 million weights, bfloat16, that speaks the starter's tokens."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=960,
        intermediate_size=2560,
        num_hidden_layers=32,
        num_attention_heads=15,
        num_key_value_heads=5,
        vocab_size=2560,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    )
    transformers.utils.logging.disable_progress_bar()
    transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(directory)
    for name in TOKENIZER_FILES:
        shutil.copyfile(MODEL_DIRECTORY / name, directory / name)
    return directory
