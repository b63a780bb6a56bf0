"""How long attention of one decoded token takes behind a long context: over blocks, and through a shadow.

Layers of the shapes of Llama 3.2 1B and SmolLM2 360M with random keys and values in bfloat16, all that an
engine does between a layer's projections: new keys and values are stored, and what is before them is attended
to by the engine's own backend and kernels. Each step goes through all layers, so that no cache holds what the
next step reads. One thread is measured by the processor's time, so that neighbours on its core count little.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.clock import cost_of
from benchmarks.table import Row
from kvchat.engine.api.ids import GroupId, SequenceId
from kvchat.engine.api.view import View
from kvchat.engine.formats.attention_metadata import AttentionCall, AttentionMetadata
from kvchat.engine.formats.format_table import PagedAttention
from kvchat.engine.formats.shadow.rotary import Rotary
from kvchat.engine.formats.shadow.shadows import Shadows
from kvchat.engine.formats.shadow.spec import ShadowSpec
from kvchat.engine.formats.spec import Group
from kvchat.engine.kernels.native.library import library, why_not
from kvchat.engine.kernels.paged_attention import prepare
from kvchat.engine.kernels.paged_attention.args import SequenceSpan
from kvchat.engine.memory.device_pool import DevicePool
from kvchat.engine.sequences.batch_plan import ShadowedPrompt

NUM_LAYERS, HEAD_DIM = 4, 64
LENGTH = 32_768
BLOCK_SIZE = 64
BUDGETS = (1024, 2048)
ROUNDS, STEPS = 5, 8
LEAST_RATIO = 1.0
WANTED_RATIO = 2.0
"""With the usual budget, which is the first."""
CALL = AttentionCall(scaling=None, window=None, softcap=None, sinks=None)
GROUP = GroupId(0)
PROMPT = ShadowedPrompt(name=b"", num_tokens=LENGTH)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Attention of a layer.

    Args:
        key_rank: of keys before rotation, so that a basis holds them.
    """

    name: str
    num_heads: int
    num_kv_heads: int
    key_rank: int

    @property
    def width(self) -> int:
        return self.num_kv_heads * HEAD_DIM


SHAPES = (
    Shape(name="32 on 8 of 64", num_heads=32, num_kv_heads=8, key_rank=60),
    Shape(name="15 on 5 of 64", num_heads=15, num_kv_heads=5, key_rank=40),
)


def turn(positions: Tensor) -> tuple[Tensor, Tensor]:
    angles = positions[..., None] * 5e5 ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    both = torch.cat((angles, angles), dim=-1)
    return both.cos(), both.sin()


class Decoding:
    """All layers, behind `LENGTH` tokens.

    Args:
        rank: of the keys before rotation; None: they have none.
    """

    def __init__(self, shape: Shape, rank: int | None) -> None:
        self._shape = shape
        heads = shape.num_kv_heads
        sizes = {"num_kv_heads": heads, "head_dim_k": HEAD_DIM, "head_dim_v": HEAD_DIM}
        spec = ShadowSpec(**sizes, dtype="BF16", view=View(rule="shadow"))
        group = Group(id=GROUP, spec=spec, layers=tuple(range(NUM_LAYERS)))
        num_blocks = (LENGTH + (STEPS + 1) * ROUNDS * len(BUDGETS)) // BLOCK_SIZE + 1
        self._pool = DevicePool([group], {GROUP: num_blocks}, BLOCK_SIZE, torch.device("cpu"))
        self._table = torch.randperm(num_blocks)
        self._first_visible = spec.first_visible
        rotary = Rotary(turn)
        for number, layer in self._pool.layers.items():
            keys = _keys(shape, rank, rotary, number)
            whole = torch.zeros(num_blocks * BLOCK_SIZE, heads, HEAD_DIM, dtype=torch.bfloat16)
            for part, rows in ((layer.keys, keys), (layer.values, torch.randn(keys.shape).bfloat16())):
                whole[:LENGTH] = rows
                part[self._table] = whole.unflatten(0, (-1, BLOCK_SIZE)).transpose(1, 2)
        self._rotaries = dict.fromkeys(self._pool.layers, rotary)
        self._attention = PagedAttention(self._pool.layers)
        self._shadows: dict[int, Shadows] = {}
        self._lengths: dict[int | None, int] = {}
        self._budget: int | None = None

    def look_through(self, budget: int | None) -> None:
        """Decode through a shadow from now on, where that stopped last; None: over blocks."""
        self._budget = budget
        self._lengths.setdefault(budget, LENGTH)
        if budget is not None and budget not in self._shadows:
            self._shadows[budget] = Shadows(View(rule="shadow", budget=budget), self._rotaries, 2**40)

    def step(self) -> None:
        """Compute the attention of one token in all layers."""
        at = self._lengths[self._budget]
        blocks = self._table[: at // BLOCK_SIZE + 1]
        shadow = None
        if self._budget is not None:
            shadow = self._shadows[self._budget].step(SequenceId(0), PROMPT, at, blocks)
        span = SequenceSpan(0, 1, at, 0, blocks, shadow=shadow)
        slots = blocks[-1:] * BLOCK_SIZE + at % BLOCK_SIZE
        prepared = prepare([span], self._first_visible)
        self._attention.step = {GROUP: AttentionMetadata(slots, [span], prepared)}
        for layer in range(NUM_LAYERS):
            query = torch.randn(1, self._shape.num_heads, HEAD_DIM).bfloat16()
            key, value = torch.randn(2, 1, self._shape.num_kv_heads, HEAD_DIM).bfloat16()
            self._attention.attend(layer, query, key, value, CALL)
        self._lengths[self._budget] = at + 1

    def seconds(self) -> float:
        """Return how long a layer takes, in the mean of some steps."""
        cost = cost_of(lambda: [self.step() for _ in range(STEPS)])
        whole = cost.cpu_s if torch.get_num_threads() == 1 else cost.wall_s
        return whole / STEPS / NUM_LAYERS


@torch.inference_mode()
def measure_decode() -> list[Row]:
    """Return the time of a token in one layer by turns over blocks and through shadows, and the ratios."""
    if library() is None:
        raise SystemExit(f"there are no native kernels here: {why_not()}")
    torch.manual_seed(0)
    rows: list[Row] = []
    for shape in SHAPES:
        for rank, kind in ((shape.key_rank, "keys on a basis"), (None, "keys that no basis holds")):
            decoding = Decoding(shape, rank)
            for budget in BUDGETS:
                rows += _compared(decoding, budget, f"{shape.name}, {kind}, {budget:,} chosen")
    return rows


def _compared(decoding: Decoding, budget: int, name: str) -> list[Row]:
    exact: list[float] = []
    shadow: list[float] = []
    for _ in range(ROUNDS):
        for chosen, found in ((None, exact), (budget, shadow)):
            decoding.look_through(chosen)
            decoding.step()  # makes the shadow the first time
            found.append(1e3 * decoding.seconds())
    ratios = [long / short for long, short in zip(exact, shadow, strict=True)]
    wanted = f", wanted {WANTED_RATIO:g}" if budget == BUDGETS[0] else ""
    return [
        Row.of(f"{name}: over blocks", "ms", exact),
        Row.of("  through a shadow", "ms", shadow),
        Row.of("  times as fast", "x", ratios, f"more than {LEAST_RATIO:g}{wanted}"),
    ]


def _keys(shape: Shape, rank: int | None, rotary: Rotary, seed: int) -> Tensor:
    """Return keys [n, H_kv, D] as they are stored."""
    keys = torch.empty(LENGTH, shape.num_kv_heads, HEAD_DIM, dtype=torch.bfloat16)
    generator = torch.Generator().manual_seed(seed)
    inner = rank or shape.width
    directions = torch.randn(inner, shape.width, generator=generator) / inner**0.5
    for start in range(0, LENGTH, 4096):
        piece = keys[start : start + 4096]
        before = torch.randn(len(piece), inner, generator=generator) @ directions
        piece.copy_(rotary.turned(before.view(piece.shape), torch.arange(start, start + len(piece))))
    return keys
