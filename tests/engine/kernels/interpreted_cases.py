"""Names and shapes of the cases that run under the Triton interpreter."""

from dataclasses import dataclass

from tests.engine.kernels.attention_cases import Shape

LENGTHS = (1, 63, 64, 65, 130)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCase:
    """One call: its sequences, dtype, and the keys of a part where queries stand alone."""

    shape: Shape
    lengths: tuple[int, ...] = LENGTHS
    dtype: str = "float32"
    part_len: int = 64


_DECODE = {"num_new": 1}
_CHUNK = {"num_new": 5}

ATTENTION_CASES = {
    "decode, grouped queries": AttentionCase(shape=Shape(num_heads=8, num_kv_heads=2, **_DECODE)),
    "decode, one key-value head, float16": AttentionCase(
        shape=Shape(num_kv_heads=1, block_size=64, **_DECODE), dtype="float16"
    ),
    "decode, window and sinks": AttentionCase(shape=Shape(window=37, has_sinks=True, **_DECODE), part_len=16),
    "decode, chunks": AttentionCase(shape=Shape(chunk=37, **_DECODE), part_len=16),
    "decode, soft cap, other size of values": AttentionCase(
        shape=Shape(softcap=2.0, head_dim_k=20, head_dim_v=12, block_size=5, **_DECODE)
    ),
    "decode, three heads a group": AttentionCase(shape=Shape(num_heads=6, num_kv_heads=2, **_DECODE)),
    "chunk, grouped queries": AttentionCase(shape=Shape(num_heads=8, num_kv_heads=2, **_CHUNK)),
    "chunk, window, sinks, soft cap": AttentionCase(
        shape=Shape(num_kv_heads=1, window=21, softcap=1.5, has_sinks=True, **_CHUNK)
    ),
    "chunk, chunks, blocks of five": AttentionCase(shape=Shape(chunk=21, block_size=5, **_CHUNK)),
    "prompts over several tiles, float16": AttentionCase(
        shape=Shape(block_size=64), lengths=(70, 1, 40), dtype="float16"
    ),
    "prompts, windows over blocks": AttentionCase(shape=Shape(window=37), lengths=(66, 3)),
}
CONTROLS = ("one key too few", "a key of another block", "a wrong block that nobody may read")
"""What is computed wrongly on purpose, and must show."""
OTHER_CASES = (
    "latent",
    "latent neighbours",
    "latent padding",
    "padding",
    "recorded step",
    "records",
    "records by bits",
    "store records",
    "parts",
    "neighbours",
    "permutation",
    "store",
    "rope store",
    "merge",
    "move",
    "numbers with gaps",
    "large pools",
    "large strides",
)
SLOW_CASES = ("records in other parts", "records by bits in other parts")
"""What is left of a product of which the cases before have all pairs."""
