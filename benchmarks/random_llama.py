"""A Llama of 100 million random weights: where reading weights decides, not calling operations."""

from pathlib import Path

import torch
import transformers


def write_random_llama(directory: Path) -> Path:
    """Write the model to a directory: 12 layers, 12 query heads on 4 key-value heads, float32."""
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
