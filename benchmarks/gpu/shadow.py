"""Decoding of many long conversations: over exact blocks, and through shadows of blocks in host memory.

The published setting: layers of Llama 3 8B's shape; full attention with as many conversations as fit, and
six times as many through shadows. All that a layer computes of a token is timed, its products with weights
included; all layers share one layer's weights, which no cache holds, so as many bytes are read. Keys have a
low rank before rotation, and queries change little from one token to the next, so some chunks are chosen
again; how many is told.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

import torch
from torch import Tensor

from benchmarks.gpu.stage import Figure, Stage
from kvchat.engine.formats.shadow.copy_on_write_rows import Held
from kvchat.engine.formats.shadow.gpu_resources import GpuResources
from kvchat.engine.formats.shadow.layer import BlockChunks, ShadowLayer
from kvchat.engine.formats.shadow.rotary import Rotary
from kvchat.engine.formats.shadow.settings import ShadowSettings
from kvchat.engine.kernels.paged_attention import paged_attention
from kvchat.engine.kernels.paged_attention.args import AttentionArgs, KVPair, SequenceSpan
from kvchat.engine.kernels.paged_attention.step_tables import step_tables
from kvchat.engine.kernels.store_kv import store_kv
from kvchat.engine.kernels.stream_protocol import InlineStreams
from kvchat.engine.memory.cuda_streams import CudaStreams
from kvchat.engine.memory.pinned import pinned_map
from kvchat.platform.host_memory import available_bytes

BLOCK_SIZE = 64
PIECE_LEN = 4096
MODEL_LAYERS = 32
CHANGE = 0.3
"""Part of a query that is new with each token."""
SPARE = 256
"""Tokens that are decoded at most."""
HOST_SHARE = 0.6
MOST_LAYERS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Of a layer. `key_rank`: of keys before rotation."""

    num_heads: int = 32
    num_kv_heads: int = 8
    dim: int = 128
    inner: int = 14_336
    key_rank: int = 120

    @property
    def hidden(self) -> int:
        return self.num_heads * self.dim

    @property
    def width(self) -> int:
        return self.num_kv_heads * self.dim


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A context, tokens that a step chooses of it, and conversations on both sides.

    Args:
        published: how many times as many tokens a second were published, on an A100.
    """

    num_tokens: int
    budget: int
    batch: int
    shadow_batch: int
    published: float
    shape: Shape = Shape()

    @property
    def shadow(self) -> ShadowSettings:
        return ShadowSettings(budget=self.budget, num_outliers=self.budget // 1024 * 24, is_remote=True)


SETTINGS = (
    Setting(num_tokens=61_440, budget=1024, batch=8, shadow_batch=48, published=2.83),
    Setting(num_tokens=124_928, budget=2048, batch=4, shadow_batch=24, published=2.97),
)
DRY_SETTING = Setting(
    num_tokens=320,
    budget=64,
    batch=1,
    shadow_batch=2,
    published=2.97,
    shape=Shape(num_heads=4, num_kv_heads=2, dim=16, inner=64, key_rank=4),
)


@torch.inference_mode()
def shadows(stage: Stage) -> Iterator[Figure]:
    """The shorter of the published contexts, in one layer."""
    yield from compared(stage, DRY_SETTING if stage.is_dry else SETTINGS[0], 1)


@torch.inference_mode()
def compared(stage: Stage, setting: Setting, num_layers: int) -> Iterator[Figure]:
    """Yield tokens a second of both sides, as many layers as a model has, and the ratio."""
    words = f"{setting.num_tokens:,} tokens, {num_layers} of {MODEL_LAYERS} layers"
    exact = OverBlocks(stage, setting, num_layers)
    figures = [
        _figure(stage, f"over blocks, {setting.batch} x {words}", exact.step, setting.batch, num_layers)
    ]
    yield figures[0]
    del exact
    seen = ThroughShadows(stage, setting, num_layers)
    name = f"through shadows, {setting.shadow_batch} x {words}"
    figures.append(_figure(stage, name, seen.step, setting.shadow_batch, num_layers))
    yield figures[1]
    share = seen.num_fetched / seen.num_wanted
    yield Figure(name="  chunks from host memory", unit="of chosen", value=share, low=share, high=share)
    low, middle, high = figures[0].low, figures[0].value, figures[0].high
    yield Figure(
        name="  times as many tokens a second",
        unit="x",
        value=figures[1].value / middle,
        low=figures[1].low / high,
        high=figures[1].high / low,
        target=f"{setting.published} published, on an A100",
    )


def num_layers_of(setting: Setting) -> int:
    """Return how many layers' values host memory holds, of up to four: they stand for all."""
    layer_bytes = setting.shadow_batch * setting.num_tokens * setting.shape.width * 2
    return max(1, min(MOST_LAYERS, int(HOST_SHARE * available_bytes()) // layer_bytes))


def _figure(stage: Stage, name: str, step: Callable[[], None], batch: int, num_layers: int) -> Figure:
    """Return tokens a second of a model with all layers."""
    rates = [batch * num_layers / MODEL_LAYERS / second for second in stage.seconds(step, rounds=7)]
    middle = sorted(rates)[len(rates) // 2]
    return Figure(name=name, unit="tokens/s", value=middle, low=min(rates), high=max(rates))


class Layers(ABC):
    """What both sides compute beside attention.

    Args:
        batch: conversations.
    """

    def __init__(self, stage: Stage, setting: Setting, num_layers: int, batch: int) -> None:
        self.stage, self.setting, self.num_layers, self.batch = stage, setting, num_layers, batch
        self.dtype = torch.float32 if stage.is_dry else torch.bfloat16
        shape = setting.shape
        self._weights = [
            stage.random(inner, outer, dtype=self.dtype) * inner**-0.5
            for inner, outer in (
                (shape.hidden, shape.hidden + 2 * shape.width),
                (shape.hidden, shape.hidden),
                (shape.hidden, 2 * shape.inner),
                (shape.inner, shape.hidden),
            )
        ]
        self._queries = self._random(num_layers, batch, shape.num_heads, shape.dim)

    def step(self) -> None:
        """Compute one token of each conversation."""
        shape = self.setting.shape
        hidden = self._random(self.batch, shape.hidden)
        for layer in range(self.num_layers):
            projected = hidden @ self._weights[0]
            new = projected[:, shape.hidden :].unflatten(1, (2, shape.num_kv_heads, shape.dim))
            out = self.attend(layer, self._next_query(layer), new[:, 0], new[:, 1])
            hidden = hidden + out.flatten(1) @ self._weights[1]
            gate, up = (hidden @ self._weights[2]).chunk(2, dim=1)
            hidden = hidden + (torch.nn.functional.silu(gate) * up) @ self._weights[3]

    @abstractmethod
    def attend(self, layer: int, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Store a token's keys and values [batch, H_kv, D]; return what its queries [batch, H, D] find."""

    def _next_query(self, layer: int) -> Tensor:
        """Return queries [batch, H, D] that differ a little from those of the token before."""
        before = self._queries[layer]
        new = (1 - CHANGE**2) ** 0.5 * before + CHANGE * self._random(*before.shape)
        self._queries[layer] = new
        return new

    def _random(self, *size: int) -> Tensor:
        return self.stage.random(*size, dtype=self.dtype)


class OverBlocks(Layers):
    """Full attention over exact blocks on the device."""

    def __init__(self, stage: Stage, setting: Setting, num_layers: int) -> None:
        super().__init__(stage, setting, num_layers, setting.batch)
        shape, self._lengths = setting.shape, count(setting.num_tokens)
        per_sequence = -(-(setting.num_tokens + SPARE) // BLOCK_SIZE)
        size = (per_sequence * self.batch, shape.num_kv_heads, BLOCK_SIZE, shape.dim)
        self._pools = [(self._random(*size), self._random(*size)) for _ in range(num_layers)]
        self._tables = torch.randperm(size[0], device=stage.device).chunk(self.batch)

    def step(self) -> None:
        at = next(self._lengths)
        used = [table[: at // BLOCK_SIZE + 1] for table in self._tables]
        spans = [SequenceSpan(row, row + 1, at, 0, blocks) for row, blocks in enumerate(used)]
        scale = self.setting.shape.dim**-0.5
        self._args = AttentionArgs(spans, scale, prepared=step_tables(spans, lambda _: 0))
        self._slots = torch.cat([blocks[-1:] for blocks in used]) * BLOCK_SIZE + at % BLOCK_SIZE
        super().step()

    def attend(self, layer: int, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        pools = self._pools[layer]
        store_kv(keys, values, *pools, self._slots)
        return paged_attention(query, *pools, self._args)


class ThroughShadows(Layers):
    """Attention through shadows, values of whose quantized tokens lie in pinned host memory."""

    def __init__(self, stage: Stage, setting: Setting, num_layers: int) -> None:
        super().__init__(stage, setting, num_layers, setting.shadow_batch)
        self._held = Held()
        streams = CudaStreams(stage.device) if stage.device.type == "cuda" else InlineStreams()
        self._remote = GpuResources(streams, self._held)
        self._rotary = Rotary(self._turn)
        self._directions = self._random(setting.shape.key_rank, setting.shape.width)
        rows = [[self._shadow() for _ in range(self.batch)] for _ in range(num_layers)]
        self._rows: Sequence[Sequence[tuple[ShadowLayer, BlockChunks]]] = rows
        self.num_wanted, self._fetched = 0, torch.zeros((), dtype=torch.int64, device=stage.device)

    @property
    def num_fetched(self) -> int:
        return int(self._fetched)

    def attend(self, layer: int, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        out = []
        for row, (shadow, source) in enumerate(self._rows[layer]):
            part = slice(row, row + 1)
            found, steps = shadow.attend(
                query[part], keys[part], values[part], self.setting.shape.dim**-0.5, source
            )
            out.append(found)
            self.num_wanted += sum(step.num_wanted for step in steps)
            self._fetched += sum(step.num_fetched for step in steps)
        return torch.cat(out)

    def _shadow(self) -> tuple[ShadowLayer, BlockChunks]:
        """Return the shadow of one conversation in one layer, and its blocks. All its keys lie on a basis, so
        of them no block is read: those of values stand for both.
        """
        shape, num_tokens, device = self.setting.shape, self.setting.num_tokens, self.stage.device
        keys = torch.empty(num_tokens, shape.num_kv_heads, shape.dim, dtype=self.dtype, device=device)
        for start in range(0, num_tokens, PIECE_LEN):
            piece = keys[start : start + PIECE_LEN]
            before = (self._random(len(piece), shape.key_rank) @ self._directions).view(piece.shape)
            positions = torch.arange(start, start + len(piece), device=device)
            piece.copy_(self._rotary.turned(before, positions))
        num_blocks = -(-num_tokens // BLOCK_SIZE)
        values = self._random(num_blocks, shape.num_kv_heads, BLOCK_SIZE, shape.dim)
        pool = self._in_host_memory(values)
        order = torch.randperm(num_blocks, device=device)
        pool[order.to(pool.device)] = values.to(pool.device)
        rows = values.transpose(1, 2).flatten(0, 1)[:num_tokens]
        shadow = ShadowLayer.of_prompt(
            self.setting.shadow, self._rotary, keys, rows, self._held, remote=self._remote
        )
        assert shadow.stock.compressed_keys.are_on_bases
        return shadow, BlockChunks(KVPair(pool, pool), order)

    def _in_host_memory(self, like: Tensor) -> Tensor:
        if self.stage.device.type != "cuda":
            return torch.empty_like(like)
        return pinned_map(like.nbytes).view(like.dtype).view(like.shape)

    def _turn(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        dim = self.setting.shape.dim
        turned = torch.arange(0, dim, 2, device=positions.device) / dim
        angles = positions[..., None] * 5e5**-turned
        both = torch.cat((angles, angles), dim=-1)
        return both.cos(), both.sin()
