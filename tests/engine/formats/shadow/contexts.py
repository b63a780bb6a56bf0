"""Small contexts whose keys have a low rank before rotation, their shadows, and what dense attention makes
of them."""

from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from kvchat.engine.formats.shadow.copy_on_write_rows import Held
from kvchat.engine.formats.shadow.gpu_resources import GpuResources
from kvchat.engine.formats.shadow.layer import BlockChunks, ShadowLayer, ShadowStep
from kvchat.engine.formats.shadow.rotary import Rotary
from kvchat.engine.formats.shadow.settings import ShadowSettings
from kvchat.engine.kernels.paged_attention.args import KVPair
from kvchat.engine.kernels.stream_protocol import InlineStreams

NUM_KV_HEADS, GROUP, HEAD_DIM, VALUE_DIM = 2, 3, 16, 12
WIDTH = NUM_KV_HEADS * HEAD_DIM
SCALE = HEAD_DIM**-0.5
RANK = 6
SMALL = ShadowSettings(budget=64, num_outliers=3, exact_len=32, query_block=16, rank=RANK)
"""Chooses 8 chunks, sees 4 besides, and compresses 4 at a time."""
REMOTE = replace(SMALL, is_remote=True)
"""The same on a GPU, whose blocks lie in host memory."""
BLOCK_SIZE = 16


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def turn(positions: Tensor, num_turned: int = HEAD_DIM, theta: float = 1e4) -> tuple[Tensor, Tensor]:
    frequencies = theta ** (-torch.arange(0, num_turned, 2) / num_turned)
    angles = positions[..., None] * frequencies
    both = torch.cat((angles, angles), dim=-1)
    return both.cos(), both.sin()


ROTARY = Rotary(turn)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Context:
    """Tokens with their queries [n, H, D], rotated keys [n, H_kv, D] and values [n, H_kv, D_v]."""

    query: Tensor
    keys: Tensor
    values: Tensor

    def part(self, start: int, end: int) -> tuple[Tensor, Tensor, Tensor]:
        return self.query[start:end], self.keys[start:end], self.values[start:end]


def make_context(num_tokens: int, rank: int = RANK, seed: int = 0) -> Context:
    before = randn(num_tokens, rank, seed=seed + 1) @ randn(rank, WIDTH, seed=99)
    keys = ROTARY.turned(before.view(num_tokens, NUM_KV_HEADS, HEAD_DIM), torch.arange(num_tokens))
    query = randn(num_tokens, NUM_KV_HEADS * GROUP, HEAD_DIM, seed=seed + 2)
    return Context(query=query, keys=keys, values=randn(num_tokens, NUM_KV_HEADS, VALUE_DIM, seed=seed + 3))


@cache
def in_blocks(context: Context) -> BlockChunks:
    """Return keys and values of a context in blocks of any order, among others that hold no numbers."""
    num_blocks = -(-len(context.keys) // BLOCK_SIZE)
    order = torch.randperm(num_blocks + 5, generator=torch.Generator().manual_seed(0))[:num_blocks]
    return BlockChunks(KVPair(_pool(context.keys, order), _pool(context.values, order)), order)


def _pool(side: Tensor, order: Tensor) -> Tensor:
    """Return rows [n, H_kv, D] in blocks [N, H_kv, P, D]."""
    whole = side.new_full((len(order) * BLOCK_SIZE, *side.shape[1:]), float("nan"))
    whole[: len(side)] = side
    pool = side.new_full((len(order) + 5, side.shape[1], BLOCK_SIZE, side.shape[2]), float("nan"))
    pool[order] = whole.unflatten(0, (-1, BLOCK_SIZE)).transpose(1, 2)
    return pool


def shadow_of(
    context: Context, num_tokens: int, settings: ShadowSettings = SMALL, held: Held | None = None
) -> ShadowLayer:
    """Return the shadow of a context's first tokens."""
    held = held or Held()
    remote = GpuResources(InlineStreams(), held) if settings.is_remote else None
    _, keys, values = context.part(0, num_tokens)
    return ShadowLayer.of_prompt(settings, ROTARY, keys, values, held, remote)


def attended(layer: ShadowLayer, context: Context, start: int, end: int) -> tuple[Tensor, list[ShadowStep]]:
    return layer.attend(*context.part(start, end), SCALE, in_blocks(context))


def run(layer: ShadowLayer, context: Context, start: int, end: int) -> Tensor:
    return attended(layer, context, start, end)[0]


def seen_chunks(layer: ShadowLayer) -> list[list[int]]:
    """Return the chunks that each head has chosen last."""
    chosen = layer.stock.working.slots if layer.settings.is_remote else layer._chosen_before
    assert chosen is not None
    return [sorted(chunks) for chunks in chosen.tolist()]


def dense(context: Context, start: int, end: int) -> Tensor:
    """Return what the queries [start, end) get from all that is before them."""
    query, keys, values = context.query[start:end], context.keys[:end], context.values[:end]
    wide = [side.repeat_interleave(GROUP, dim=1).transpose(0, 1) for side in (keys, values)]
    mask = torch.ones(end - start, end).tril(start).bool()
    out = torch.nn.functional.scaled_dot_product_attention(query.transpose(0, 1), *wide, attn_mask=mask)
    return out.transpose(0, 1)


def distance(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm())
