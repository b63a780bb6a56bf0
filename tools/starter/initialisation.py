"""Starting weights: small random ones, silent outputs, and an induction circuit set by hand.

The circuit lets the untrained network continue a repeated sequence: layer 0 writes down which token came
before, layer 1 looks for the place where the current token came before and copies the token that followed.
Training changes every one of these weights; without this start the small model does not learn to look things
up in time.

Residual dimensions: 0 is a constant, [1, 128) the content of a token, [128, 192) reserved for sketches of the
previous token, 32 for each group of heads.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tools.starter.network import Shape

CONSTANT, CONTENT, SKETCH = 0.15, 0.04, 0.004
CONTENT_START, SKETCH_START, SKETCH_DIM = 1, 128, 32
NUM_PREVIOUS_FREQUENCIES = 3
SKETCH_GAIN, COPY_GAIN = 0.035, 0.12
CIRCUIT_NORM_GAIN, NORM_GAIN = 2.0, 1.5


def initial_parameters(shape: Shape, seed: int) -> dict[str, Tensor]:
    """Return float32 starting weights by their Hugging Face names; pure."""
    generator = torch.Generator().manual_seed(seed)
    parameters = {
        "model.embed_tokens.weight": _embedding(shape, generator),
        "model.norm.weight": torch.ones(shape.hidden),
    }
    for layer in range(shape.num_layers):
        parameters |= _layer(shape, layer, generator)
    basis = torch.linalg.qr(
        torch.randn(SKETCH_START - CONTENT_START, SKETCH_START - CONTENT_START, generator=generator)
    )[0]
    _set_previous_token_heads(parameters, shape, basis)
    _set_induction_heads(parameters, shape, basis)
    return parameters


def _embedding(shape: Shape, generator: torch.Generator) -> Tensor:
    weight = torch.randn(shape.vocabulary, shape.hidden, generator=generator) * CONTENT
    weight[:, 0] = CONSTANT
    weight[:, SKETCH_START:] *= SKETCH / CONTENT
    return weight


def _layer(shape: Shape, layer: int, generator: torch.Generator) -> dict[str, Tensor]:
    def random(rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, generator=generator) * columns**-0.5

    gain = CIRCUIT_NORM_GAIN if layer < 2 else NORM_GAIN
    queries, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    weights = {
        "input_layernorm": torch.ones(shape.hidden),
        "post_attention_layernorm": torch.ones(shape.hidden),
        "self_attn.q_proj": random(queries, shape.hidden),
        "self_attn.k_proj": random(keys, shape.hidden),
        "self_attn.v_proj": random(keys, shape.hidden),
        "self_attn.o_proj": torch.zeros(shape.hidden, queries),
        "self_attn.q_norm": torch.full((shape.head_dim,), gain),
        "self_attn.k_norm": torch.full((shape.head_dim,), gain),
        "mlp.gate_proj": random(shape.intermediate, shape.hidden),
        "mlp.up_proj": random(shape.intermediate, shape.hidden),
        "mlp.down_proj": torch.zeros(shape.hidden, shape.intermediate),
    }
    return {f"model.layers.{layer}.{name}.weight": weight for name, weight in weights.items()}


def _set_previous_token_heads(parameters: dict[str, Tensor], shape: Shape, basis: Tensor) -> None:
    """Layer 0: the first head of each group attends to the token before and writes a sketch of it."""
    prefix = "model.layers.0.self_attn"
    half, dim = shape.head_dim // 2, shape.head_dim
    frequencies = shape.rope_theta ** (-torch.arange(half).float() / half)
    content = slice(CONTENT_START, SKETCH_START)
    for group in range(shape.num_kv_heads):
        head = group * shape.num_heads // shape.num_kv_heads
        query = parameters[f"{prefix}.q_proj.weight"][head * dim : (head + 1) * dim]
        key = parameters[f"{prefix}.k_proj.weight"][group * dim : (group + 1) * dim]
        query.zero_()
        key.zero_()
        for pair in range(NUM_PREVIOUS_FREQUENCIES):
            key[pair, 0] = 1.0
            # the key's vector turned back by one position, so that it fits the key of the token before
            query[pair, 0] = torch.cos(-frequencies[pair])
            query[pair + half, 0] = torch.sin(-frequencies[pair])
        sketch = basis[group * SKETCH_DIM : (group + 1) * SKETCH_DIM]
        value = parameters[f"{prefix}.v_proj.weight"][group * dim : group * dim + SKETCH_DIM]
        value.zero_()
        value[:, content] = sketch
        rows = slice(SKETCH_START + group * SKETCH_DIM, SKETCH_START + (group + 1) * SKETCH_DIM)
        columns = slice(head * dim, head * dim + SKETCH_DIM)
        parameters[f"{prefix}.o_proj.weight"][rows, columns] = torch.eye(SKETCH_DIM) * SKETCH_GAIN


def _set_induction_heads(parameters: dict[str, Tensor], shape: Shape, basis: Tensor) -> None:
    """Layer 1: the first head of each group finds the current token earlier and copies what followed."""
    prefix = "model.layers.1.self_attn"
    half, dim = shape.head_dim // 2, shape.head_dim
    slow = torch.cat((torch.arange(half // 2, half), torch.arange(half + half // 2, dim)))
    content = slice(CONTENT_START, SKETCH_START)
    for group in range(shape.num_kv_heads):
        head = group * shape.num_heads // shape.num_kv_heads
        query = parameters[f"{prefix}.q_proj.weight"][head * dim : (head + 1) * dim]
        key = parameters[f"{prefix}.k_proj.weight"][group * dim : (group + 1) * dim]
        query.zero_()
        key.zero_()
        query[slow, content] = basis[group * SKETCH_DIM : (group + 1) * SKETCH_DIM]
        start = SKETCH_START + group * SKETCH_DIM
        key[slow, start : start + SKETCH_DIM] = torch.eye(SKETCH_DIM)
        part = basis[group * dim : (group + 1) * dim]
        value = parameters[f"{prefix}.v_proj.weight"][group * dim : (group + 1) * dim]
        value.zero_()
        value[: len(part), content] = part
        columns = slice(head * dim, head * dim + len(part))
        parameters[f"{prefix}.o_proj.weight"][content, columns] = part.T * COPY_GAIN
