"""The network in the form that trains fast on a CPU: same function and parameter names as Qwen3ForCausalLM.

Shapes: B sequences, L tokens, C hidden, H query heads, H_kv key-value heads, G = H / H_kv, D head size,
W window.
Matrix products run in bfloat16 where the processor multiplies it, the residual stream, norms and master
weights in float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tools.starter.attention import full_attention, window_attention
from tools.starter.precision import PRODUCT_DTYPE


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of the network; the defaults are the shipped model's."""

    vocabulary: int = 2560
    hidden: int = 192
    intermediate: int = 512
    num_layers: int = 6
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 64
    window: int = 128
    rope_theta: float = 1e7
    norm_eps: float = 1e-6

    def is_sliding(self, layer: int) -> bool:
        """Say whether `layer` attends to a window; layers alternate, the first one slides."""
        return layer % 2 == 0


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, weight, scale)
        return (wide * scale * weight).to(PRODUCT_DTYPE)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, scale = ctx.saved_tensors
        grad = grad.float()
        normed = x.float() * scale
        grad_weight = (grad * normed).flatten(0, -2).sum(0)
        grad = grad * weight
        grad_x = scale * (grad - normed * (grad * normed).mean(-1, keepdim=True))
        return grad_x.to(x.dtype), grad_weight, None


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return F.silu(gate) * up

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        gate, up = ctx.saved_tensors
        sigmoid = torch.sigmoid(gate)
        silu = gate * sigmoid
        return grad * up * (sigmoid + silu - silu * sigmoid), grad * silu


def rope_tables(shape: Shape, length: int) -> tuple[Tensor, Tensor]:
    """Return cosine and sine, each [L, 1, D / 2] float32."""
    frequencies = shape.rope_theta ** (-torch.arange(0, shape.head_dim, 2).float() / shape.head_dim)
    angles = torch.outer(torch.arange(length).float(), frequencies)
    return angles.cos()[:, None], angles.sin()[:, None]


class _Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _rotate(x, cos, sin)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        return _rotate(grad, cos, -sin), None, None


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    out = torch.empty_like(x)
    half = x.shape[-1] // 2
    left, right = x[..., :half], x[..., half:]
    out[..., :half].copy_(left * cos - right * sin)
    out[..., half:].copy_(right * cos + left * sin)
    return out


class Network:
    """Parameters by their Hugging Face names, and the loss of a batch."""

    def __init__(self, shape: Shape, parameters: dict[str, Tensor]) -> None:
        self.shape = shape
        self.parameters = parameters
        self._tables: dict[int, tuple[Tensor, Tensor]] = {}

    def _rope(self, length: int) -> tuple[Tensor, Tensor]:
        if length not in self._tables:
            self._tables[length] = rope_tables(self.shape, length)
        return self._tables[length]

    def _weights(self, layer: int, *names: str) -> Tensor:
        parts = [self.parameters[f"model.layers.{layer}.{name}.weight"] for name in names]
        return (torch.cat(parts) if len(parts) > 1 else parts[0]).to(PRODUCT_DTYPE)

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return _RMSNorm.apply(x, self.parameters[f"model.{name}.weight"], self.shape.norm_eps)

    def _attention(self, x: Tensor, layer: int) -> Tensor:
        shape = self.shape
        num_sequences, length, _ = x.shape
        prefix = f"layers.{layer}.self_attn"
        qkv = F.linear(x, self._weights(layer, "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"))
        qkv = qkv.view(num_sequences, length, -1, shape.head_dim)
        q, k, v = qkv.split((shape.num_heads, shape.num_kv_heads, shape.num_kv_heads), dim=2)
        cos, sin = self._rope(length)
        q = _Rope.apply(self._norm(q, f"{prefix}.q_norm"), cos, sin)  # [B, L, H, D]
        k = _Rope.apply(self._norm(k, f"{prefix}.k_norm"), cos, sin)  # [B, L, H_kv, D]
        if shape.is_sliding(layer):
            out = window_attention(q, k, v, shape.window)
        else:
            out = full_attention(q, k, v)
        return F.linear(out.reshape(num_sequences, length, -1), self._weights(layer, "self_attn.o_proj"))

    def _mlp(self, x: Tensor, layer: int) -> Tensor:
        gate, up = F.linear(x, self._weights(layer, "mlp.gate_proj", "mlp.up_proj")).chunk(2, dim=-1)
        return F.linear(_SwiGLU.apply(gate, up), self._weights(layer, "mlp.down_proj"))

    def hidden(self, ids: Tensor) -> Tensor:
        """Return the normed hidden states [B, L, C] in `PRODUCT_DTYPE` of `ids` [B, L]."""
        x = F.embedding(ids, self.parameters["model.embed_tokens.weight"])
        for layer in range(self.shape.num_layers):
            x = x + self._attention(self._norm(x, f"layers.{layer}.input_layernorm"), layer)
            x = x + self._mlp(self._norm(x, f"layers.{layer}.post_attention_layernorm"), layer)
        return self._norm(x, "norm")

    def logits(self, hidden: Tensor) -> Tensor:
        """Return float32 logits [..., V]; the head is the embedding."""
        return F.linear(hidden, self.parameters["model.embed_tokens.weight"].to(PRODUCT_DTYPE)).float()

    def loss(self, ids: Tensor, weights: Tensor) -> Tensor:
        """Return the weighted mean cross-entropy of `ids` [B, L + 1].

        Args:
            weights: Weight of each token as a target, [B, L + 1]; the head runs only where it is not zero.
        """
        hidden = self.hidden(ids[:, :-1])
        targets, target_weights = ids[:, 1:], weights[:, 1:]
        chosen = target_weights > 0
        losses = F.cross_entropy(self.logits(hidden[chosen]), targets[chosen], reduction="none")
        kept = target_weights[chosen]
        return (losses * kept).sum() / kept.sum()
