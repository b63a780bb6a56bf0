"""The models that every engine runs: Llama shapes with random weights."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of a Llama with a tied embedding."""

    name: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_context: int

    @property
    def linear_weights(self) -> int:
        """Weights that one token reads: all linear layers, the last one included."""
        kv_dim = self.num_kv_heads * self.head_dim
        attention = 2 * self.hidden_size * self.num_heads * self.head_dim + 2 * self.hidden_size * kv_dim
        feed_forward = 3 * self.hidden_size * self.intermediate_size
        return self.num_layers * (attention + feed_forward) + self.vocab_size * self.hidden_size

    def kv_bytes(self, length: int, bytes_per_number: int) -> int:
        """Keys and values of a context, all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * length * bytes_per_number

    def config(self, eos_token_id: int | None) -> Any:
        """Return transformers' config of it."""
        import transformers

        return transformers.LlamaConfig(
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_hidden_layers=self.num_layers,
            num_attention_heads=self.num_heads,
            num_key_value_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            vocab_size=self.vocab_size,
            max_position_embeddings=self.max_context,
            tie_word_embeddings=True,
            eos_token_id=eos_token_id,
        )


SHAPES = {
    shape.name: shape
    for shape in (
        Shape(
            name="100m",
            hidden_size=768,
            intermediate_size=2048,
            num_layers=12,
            num_heads=12,
            num_kv_heads=4,
            head_dim=64,
            vocab_size=32000,
            max_context=20480,
        ),
        Shape(
            name="360m",
            hidden_size=960,
            intermediate_size=2560,
            num_layers=32,
            num_heads=15,
            num_kv_heads=5,
            head_dim=64,
            vocab_size=49152,
            max_context=20480,
        ),
        Shape(
            name="1b",
            hidden_size=2048,
            intermediate_size=8192,
            num_layers=16,
            num_heads=32,
            num_kv_heads=8,
            head_dim=64,
            vocab_size=49152,
            max_context=8192,
        ),
    )
}
BITS_PER_WEIGHT = {"16": 16.0, "8": 8.5, "4": 4.5}
"""What one weight takes in the formats that are compared, scales counted."""
