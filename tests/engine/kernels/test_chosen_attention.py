"""Attention to chosen chunks by the native kernel is the reference at every level, and reads nothing else."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from kvchat.engine.kernels.native.library import Library
from kvchat.engine.kernels.paged_attention.args import KVPair
from kvchat.engine.kernels.shadow_kv import native, reference
from kvchat.engine.kernels.shadow_kv.args import ChosenChunks, ChunkChoice, Landmarks
from tests.engine.kernels.native_library import all_levels

pytestmark = [pytest.mark.cpu, all_levels]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    num_heads: int
    num_kv_heads: int
    dim_k: int
    dim_v: int
    block_size: int = 64
    chunk_size: int = 8


SHAPES = {
    "15 on 5 of 64": Shape(num_heads=15, num_kv_heads=5, dim_k=64, dim_v=64),
    "4 on 4 of 80": Shape(num_heads=4, num_kv_heads=4, dim_k=80, dim_v=80, block_size=16),
    "14 on 2 of 128": Shape(num_heads=14, num_kv_heads=2, dim_k=128, dim_v=96),
    "20 on 1 of 256": Shape(num_heads=20, num_kv_heads=1, dim_k=256, dim_v=256, block_size=32),
    "12 on 2 of 33": Shape(num_heads=12, num_kv_heads=2, dim_k=33, dim_v=19, block_size=8, chunk_size=4),
    "2 on 1 of 7": Shape(num_heads=2, num_kv_heads=1, dim_k=7, dim_v=5, block_size=64, chunk_size=64),
}
all_shapes = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
PIECES = {"short": (9,), "long": (601,), "pages": (64, 300, 1, 33)}
"""Chunks that stand behind each other in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    query: Tensor
    pools: KVPair
    choice: ChunkChoice

    def to(self, dtype: torch.dtype) -> "Case":
        stands = tuple(
            stand if stand.scales is not None else Landmarks(rows=stand.rows.to(dtype))
            for stand in self.choice.stands
        )
        k_pool, v_pool = self.pools
        return replace(
            self,
            query=self.query.to(dtype),
            pools=KVPair(k_pool.to(dtype), v_pool.to(dtype)),
            choice=replace(self.choice, stands=stands),
        )

    def found(self, library: Library) -> ChosenChunks:
        seen = native.chosen_attention(self.query, self.pools, self.choice, library)
        assert seen is not None
        return seen

    def wanted(self) -> ChosenChunks:
        return reference.chosen_attention(self.query, self.pools, self.choice)


def make_case(
    shape: Shape, pieces: tuple[int, ...] = PIECES["pages"], num_new: int = 1, tail_len: int = 75
) -> Case:
    """Return a case of float32; of its pieces the first has landmarks, then come keys, codes, and so on.

    Some chunks are seen anyway, the first and the last among them.
    """
    generator = torch.Generator().manual_seed(len(pieces) + num_new)
    num_chunks, size, heads = sum(pieces), shape.chunk_size, shape.num_kv_heads
    num_tokens = num_chunks * size + tail_len
    num_blocks = -(-num_tokens // shape.block_size)
    blocks = torch.randperm(num_blocks + 3, generator=generator)[:num_blocks]
    sides = [torch.randn(num_tokens, heads, dim, generator=generator) for dim in (shape.dim_k, shape.dim_v)]
    pools = [in_blocks(side, blocks, shape.block_size) for side in sides]
    chunks = sides[0][: num_chunks * size].unflatten(0, (-1, size))
    stands = tuple(stand_of(part, number % 3) for number, part in enumerate(chunks.split(pieces)))
    others = torch.stack([torch.randperm(num_chunks - 2, generator=generator)[:2] + 1 for _ in range(heads)])
    edges = torch.tensor([0, num_chunks - 1]).expand(heads, 2)
    choice = ChunkChoice(
        blocks=blocks,
        stands=stands,
        always=torch.cat((edges, others), dim=1).sort(dim=1).values,
        num_chosen=min(37, num_chunks - 5),
        chunk_size=size,
        num_tokens=num_tokens,
        softmax_scale=shape.dim_k**-0.5,
    )
    query = torch.randn(num_new, shape.num_heads, shape.dim_k, generator=generator)
    return Case(query=query, pools=KVPair(pools[0], pools[1]), choice=choice)


def stand_of(chunks: Tensor, kind: int) -> Landmarks:
    """Return what stands for chunks [n, c, H_kv, D]: landmarks, keys, or codes of them."""
    if kind < 2:
        return Landmarks(rows=chunks if kind else chunks.mean(dim=1))
    codes, scales = reference.coded(chunks)
    return Landmarks(rows=codes, scales=scales)


def in_blocks(side: Tensor, blocks: Tensor, block_size: int) -> Tensor:
    """Return a pool [N, H_kv, P, D] with rows [n, H_kv, D] in these blocks, and NaN elsewhere."""
    pool = torch.full((len(blocks) + 3, side.shape[1], block_size, side.shape[2]), float("nan"))
    whole = torch.full((len(blocks) * block_size, *side.shape[1:]), float("nan"))
    whole[: len(side)] = side
    pool[blocks] = whole.unflatten(0, (-1, block_size)).transpose(1, 2)
    return pool


def check(found: ChosenChunks, wanted: ChosenChunks) -> None:
    assert torch.equal(found.chosen, wanted.chosen)
    assert found.num_new == wanted.num_new
    torch.testing.assert_close(found.out, wanted.out, rtol=1e-5, atol=1e-5)


@pytest.mark.covering(2, each="level")
@all_shapes
@pytest.mark.parametrize("pieces", PIECES.values(), ids=PIECES.keys())
@pytest.mark.parametrize("num_new", [1, 5])
def test_it_equals_the_reference(
    shape: Shape, pieces: tuple[int, ...], num_new: int, library: Library
) -> None:
    case = make_case(shape, pieces, num_new)
    assert native.takes(case.query, case.pools, case.choice)
    check(case.found(library), case.wanted())


@pytest.mark.parametrize("tail_len", [1, 63, 64, 65, 200])
@pytest.mark.parametrize("num_new", [1, 16])
def test_tails_of_every_length_are_seen_up_to_the_query(
    tail_len: int, num_new: int, library: Library
) -> None:
    case = make_case(SHAPES["15 on 5 of 64"], (40,), min(num_new, tail_len), tail_len)
    found = case.found(library)
    check(found, case.wanted())
    assert not torch.isnan(found.out).any()  # as it is where nothing was written


@all_shapes
def test_nothing_is_read_but_what_is_seen(shape: Shape, library: Library) -> None:
    """Keys and values of every other chunk are NaN in the blocks."""
    case = make_case(shape)
    wanted = case.wanted()
    size, always = case.choice.chunk_size, case.choice.always_mask
    hidden = ~(always.scatter(1, wanted.chosen, value=True).repeat_interleave(size, dim=1))
    position = torch.arange(hidden.shape[1])
    for pool in case.pools:
        for head, tokens in enumerate(hidden):
            at = position[tokens]
            pool[case.choice.blocks[at // shape.block_size], head, at % shape.block_size] = float("nan")
    assert torch.isnan(case.wanted().out).any()
    check(case.found(library), wanted)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@all_shapes
def test_sixteen_bit_inputs_are_computed_in_float32_and_rounded_once(
    shape: Shape, dtype: torch.dtype, library: Library
) -> None:
    case = make_case(shape, num_new=3).to(dtype)
    found, wide = case.found(library), case.to(torch.float32).found(library)
    assert found.out.dtype == dtype
    assert torch.equal(found.out, wide.out.to(dtype))
    assert torch.equal(found.chosen, wide.chosen)


@pytest.mark.parametrize("num_new", [1, 2])
def test_of_chunks_that_are_alike_the_first_are_taken(num_new: int, library: Library) -> None:
    """Small whole numbers, so that sums are exact and many chunks are worth the same."""
    generator = torch.Generator().manual_seed(1)
    case = make_case(SHAPES["15 on 5 of 64"], (64, 300), num_new)
    kinds = torch.randint(-1, 2, (6, 64), generator=generator).float()
    stands = []
    for stand in case.choice.stands:
        numbers = torch.randint(0, len(kinds), stand.rows.shape[:-1], generator=generator)
        stands.append(Landmarks(rows=kinds[numbers]))
    query = torch.randint(-1, 2, case.query.shape, generator=generator).float()
    for num_chosen in (1, 20, 37, 250):
        choice = replace(case.choice, stands=tuple(stands), num_chosen=num_chosen)
        alike = replace(case, query=query, choice=choice)
        found = alike.found(library)
        check(found, alike.wanted())
        assert found.chosen.shape[1] == num_chosen


def test_one_head_that_wants_a_chunk_above_all_is_enough(library: Library) -> None:
    """Beside its weights in one head, all others are too small for a number of float32."""
    case = make_case(SHAPES["15 on 5 of 64"], (301,))
    axes, means = torch.eye(64), torch.zeros(301, 5, 64)
    means[17, 2], means[230, 2] = 300 * axes[0], 40 * axes[1]
    query = (8 * axes[:15])[None].clone()
    query[0, 7:9] = 8 * axes[:2]
    query[0, :7] = 8 * axes[20:27]
    query[0, 9:] = 8 * axes[30:36]
    always = torch.tensor([[0, 3]]).expand(5, 2)
    choice = replace(case.choice, stands=(Landmarks(rows=means),), always=always, num_chosen=2)
    found = replace(case, query=query, choice=choice).found(library)
    assert found.chosen[2].tolist() == [17, 230]
    assert found.chosen[1].tolist() == [1, 2]


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
@pytest.mark.parametrize("piece", [0, 1, 2])
def test_what_is_not_finite_is_left_to_the_definition(wrong: float, piece: int, library: Library) -> None:
    case = make_case(SHAPES["15 on 5 of 64"])
    stands = list(case.choice.stands)
    wronged = stands[piece].rows.clone() if piece < 2 else stands[piece].scales
    assert wronged is not None
    wronged[-1, ..., 3] = wrong
    if piece < 2:
        stands[piece] = Landmarks(rows=wronged)
    choice = replace(case.choice, stands=tuple(stands))
    assert native.chosen_attention(case.query, case.pools, choice, library) is None


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("num_new", [1, 7])
def test_threads_change_no_bit(num_new: int, library: Library) -> None:
    torch.set_num_threads(1)
    case = make_case(SHAPES["15 on 5 of 64"], (601, 90), num_new)
    alone = case.found(library)
    for num_threads in (2, 5):
        torch.set_num_threads(num_threads)
        found = case.found(library)
        assert torch.equal(found.out, alone.out)
        assert torch.equal(found.chosen, alone.chosen)


def test_what_lies_otherwise_is_not_taken(library: Library) -> None:
    case = make_case(SHAPES["15 on 5 of 64"], num_new=16)

    def takes(pools: KVPair = case.pools, **changes: object) -> bool:
        return native.takes(case.query, pools, replace(case.choice, **changes))  # type: ignore[arg-type]

    k_pool, v_pool = case.pools
    assert {stand.rows.dtype for stand in case.choice.stands} == {torch.float32, torch.int8}
    assert takes()
    assert takes(KVPair(k_pool[:, :, :16], v_pool[:, :, :16]))
    assert not takes(KVPair(k_pool[:, :, :12], v_pool[:, :, :12]))
    assert not takes(KVPair(k_pool, v_pool.bfloat16()))
    assert not takes(KVPair(k_pool.double(), v_pool.double()))
    assert not takes(chunk_size=12)
    assert not takes(stands=tuple(Landmarks(rows=stand.rows.bfloat16()) for stand in case.choice.stands))
    assert not takes(stands=tuple(replace(stand, rows=stand.rows[..., ::2]) for stand in case.choice.stands))
    assert not native.takes(torch.cat((case.query, case.query)), case.pools, case.choice)
