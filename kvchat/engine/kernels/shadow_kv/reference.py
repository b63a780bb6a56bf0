"""A small shadow of a long context: which chunks a query wants, and keys from few numbers. The definition.

Of the keys before rotation, projections on a basis of low rank stay on the device, with one landmark for each
chunk; values lie elsewhere. A step scores the landmarks, fetches the values of the chunks that matter, and
makes their keys again. Projections of a token need no other token, so new ones are added to an old basis.
Dimensions: n tokens, C chunks, c tokens of a chunk, Q queries, H query heads, H_kv key-value heads,
G = H / H_kv, D head size, r rank, k chunks that are chosen, N blocks, P tokens of a block.

Source: ShadowKV, arXiv 2410.21465, with projections in place of its singular value decomposition.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from kvchat.engine.kernels.paged_attention.args import KVPair, heads_first
from kvchat.engine.kernels.shadow_kv.args import Change, ChosenChunks, ChunkChoice, Landmarks, Rotations


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """Directions in which keys before rotation lie, all heads of a token behind each other.

    Args:
        directions: [H_kv * D, r], orthonormal, float32.
        energy: share of the keys' squares that they hold, at most 1.
    """

    directions: Tensor
    energy: float


def basis_of_products(products: Tensor, rank: int) -> Basis:
    """Return the best basis of `rank` directions for keys whose products with each other, summed over all
    tokens, are `products` [H_kv * D, H_kv * D], float64.
    """
    squares, directions = torch.linalg.eigh(products)  # in ascending order
    total = squares.clamp_min(0).sum()
    energy = squares[-rank:].clamp_min(0).sum() / total if total > 0 else torch.ones(())
    return Basis(directions=directions[:, -rank:].flip(1).float(), energy=float(energy))


def landmarks(keys: Tensor, chunk_size: int) -> Tensor:
    """Return the mean of every chunk [C, H_kv, D] of rotated keys [C * c, H_kv, D], float32."""
    return keys.float().unflatten(0, (-1, chunk_size)).mean(dim=1)


def likeness(keys: Tensor, chunk_size: int) -> Tensor:
    """Return how alike [C, H_kv] the mean of each chunk is to the one of its keys that is least like it.

    Args:
        keys: [C * c, H_kv, D], rotated.
    """
    chunks = keys.float().unflatten(0, (-1, chunk_size))
    return functional.cosine_similarity(chunks, chunks.mean(dim=1, keepdim=True), dim=-1).amin(dim=1)


def least_alike(likeness: Tensor, num_chunks: int) -> Tensor:
    """Return the `num_chunks` chunks [H_kv, num_chunks] of the smallest `likeness` [C, H_kv], in order."""
    # Stable: of chunks that are alike the first is taken, in every run.
    order = likeness.sort(dim=0, stable=True).indices[:num_chunks]
    return order.T.sort(dim=1).values


def chunk_scores(query: Tensor, means: Tensor, always: Tensor, softmax_scale: float) -> Tensor:
    """Return how much each chunk is wanted [H_kv, C] by rotated queries [Q, H, D] together, by landmarks.

    Args:
        means: [C, H_kv, D].
        always: as for `wanted_scores`.
    """
    return wanted_scores(products(query, means), always, softmax_scale)


def products(query: Tensor, keys: Tensor) -> Tensor:
    """Return the products [Q, H_kv, G, n], float32, of queries [Q, H, D] with keys, or landmarks, [n, H_kv,
    D].
    """
    grouped = query.float().unflatten(1, (keys.shape[1], -1))
    return torch.einsum("qhgd,nhd->qhgn", grouped, keys.float())


def highest_products(query: Tensor, keys: Tensor, chunk_size: int) -> Tensor:
    """Return the highest of the products [Q, H_kv, G, C] with the keys [C * c, H_kv, D] of each chunk.

    What a landmark stands for, from the keys themselves: never less than its product.
    """
    return products(query, keys).unflatten(-1, (-1, chunk_size)).amax(dim=-1)


def wanted_scores(products: Tensor, always: Tensor, softmax_scale: float) -> Tensor:
    """Return how much each chunk is wanted [H_kv, C] by all queries together.

    The highest weight that one of the queries, in one of the heads that share the keys, gives to what stands
    for the chunk, among all chunks that have to be chosen to be seen. The highest, not the sum: what one
    query needs is not outvoted by the others.

    Args:
        products: of the queries with what stands for each chunk [Q, H_kv, G, C].
        always: [H_kv, C] of bool: chunks that are seen anyway. They take no weight from others, and their
            scores are 0; at least one chunk of a head is none of them.
    """
    scores = (products * softmax_scale).masked_fill(always[:, None], float("-inf"))
    return scores.softmax(dim=-1).amax(dim=(0, 2))


def chosen(scores: Tensor, num_chunks: int, always: Tensor) -> Tensor:
    """Return the chunks that are attended to, [H_kv, C] of bool: `always` and the best `num_chunks` besides.

    Args:
        scores: [H_kv, C].
        always: [H_kv, C] of bool: outliers, the first chunk, those that are exact anyway.
    """
    others = scores.masked_fill(always, float("-inf"))
    order = others.sort(dim=1, descending=True, stable=True).indices[:, :num_chunks]
    wanted = always.clone().scatter_(1, order, value=True)
    return wanted


def chosen_attention(query: Tensor, pools: KVPair, choice: ChunkChoice) -> ChosenChunks:
    """Return what the last Q tokens of a sequence see of it: the chunks that each head chooses for all of
    them, those that it sees anyway, and the tail up to themselves.

    Args:
        query: [Q, H, D], rotated.
        pools: keys [N, H_kv, P, D] and values [N, H_kv, P, D_v] of all blocks, keys rotated.
    """
    size, always = choice.chunk_size, choice.always_mask
    products_of = torch.cat([worth(query, stand) for stand in choice.stands], dim=-1)
    scores = wanted_scores(products_of, always, choice.softmax_scale)
    wanted = chosen(scores, choice.num_chosen, always)
    compressed = wanted.repeat_interleave(size, dim=1)
    tail = compressed.new_ones(len(compressed), choice.num_tokens - compressed.shape[1])
    keys, values = (heads_first(pool[choice.blocks])[:, : choice.num_tokens] for pool in pools)
    is_seen = torch.cat((compressed, tail), dim=1)
    out = gathered_attention(query, keys, values, choice.softmax_scale, is_seen)
    picked = wanted & ~always
    before = torch.zeros_like(always)
    if choice.before is not None:
        before.scatter_(1, choice.before, value=True)
    return ChosenChunks(
        out=out.to(query.dtype),
        chosen=picked.nonzero()[:, 1].view(len(always), -1),
        num_new=int((picked & ~before).sum()),
    )


def worth(query: Tensor, stand: Landmarks) -> Tensor:
    """Return the products [Q, H_kv, G, n] with what stands for n chunks: landmarks, or their best keys."""
    return highest_products(query, stand.numbers(), stand.num_keys)


def coded(chunks: Tensor) -> tuple[Tensor, Tensor]:
    """Return keys [n, c, H_kv, D] as codes of their shape, int8, and the scales of each chunk and head
    [n, H_kv], float32. No number is further off than half a scale.
    """
    wide = chunks.float()
    scales = wide.abs().amax(dim=(1, 3)) / 127
    codes = (wide / scales.where(scales > 0, 1)[:, None, :, None]).round()
    return codes.to(torch.int8), scales


def gathered_attention(
    query: Tensor, keys: Tensor, values: Tensor, softmax_scale: float, is_seen: Tensor | None = None
) -> Tensor:
    """Return the output [Q, H, D_v], float32, of queries over the keys that each head sees.

    Args:
        query: [Q, H, D], rotated.
        keys, values: [H_kv, n, D] and [H_kv, n, D_v], of which the last Q are the queries' own tokens in
            order; each sees those before it and itself. In which order the others stand makes no difference.
        is_seen: which of them a head looks at [H_kv, n], of bool; None: all.
    """
    num_queries, num_tokens = len(query), keys.shape[1]
    grouped = query.float().unflatten(1, (len(keys), -1))
    scores = torch.einsum("qhgd,hnd->hgqn", grouped, keys.float()) * softmax_scale
    at = torch.arange(num_tokens - num_queries, num_tokens, device=keys.device)
    visible = torch.arange(num_tokens, device=keys.device) <= at[:, None]
    if is_seen is not None:
        visible = visible & is_seen[:, None, None]
    weights = scores.masked_fill(~visible, float("-inf")).softmax(dim=-1)
    return torch.einsum("hgqn,hnd->qhgd", weights, values.float()).flatten(1, 2)


def restore_keys(
    projections: Tensor,
    directions: Tensor,
    change: Change,
    turns: Rotations,
    out: Tensor,
    first_chunk: int = 0,
) -> None:
    """Fill the missing slots of `out` [H_kv, k, c, D] with the rotated keys of their chunks, as far as these
    have projections here.

    Args:
        projections: of chunks from `first_chunk` on [C, c, r].
        directions: [H_kv * D, r].
    """
    size = projections.shape[1]
    own = directions.float().unflatten(0, (len(out), -1))
    for head in range(len(out)):
        numbers = change.slots[head] - first_chunk
        there = change.is_missing[head] & (numbers >= 0) & (numbers < len(projections))
        before = projections[numbers[there]].float() @ own[head].T
        positions = change.slots[head][there][:, None] * size + torch.arange(size, device=numbers.device)
        out[head, there] = turned(before, turns.at(positions)).to(out.dtype)


def turned(keys: Tensor, turns: Rotations) -> Tensor:
    """Return keys [..., D] with rotary embedding, float32; `turns`: at the position of each."""
    cosines, sines = turns.cosines, turns.sines
    num_turned = 2 * cosines.shape[-1]
    part, rest = keys.float().split((num_turned, keys.shape[-1] - num_turned), dim=-1)
    if turns.are_neighbours:
        first, second = part.unflatten(-1, (-1, 2)).unbind(dim=-1)
    else:
        first, second = part.chunk(2, dim=-1)
    both = first * cosines - second * sines, second * cosines + first * sines
    part = torch.stack(both, dim=-1).flatten(-2) if turns.are_neighbours else torch.cat(both, dim=-1)
    return torch.cat((part, rest), dim=-1)


def load_chunks(pool: Tensor, blocks: Tensor, change: Change, out: Tensor) -> None:
    """Fill the missing slots of `out` [H_kv, k, c, D] with what blocks hold of their chunks.

    Args:
        pool: keys or values [N, H_kv, P, D] of blocks, which whole chunks divide; maybe on another device.
        blocks: of a sequence, in order, int64.
    """
    heads, places = change.is_missing.nonzero(as_tuple=True)
    size, block_size = out.shape[2], pool.shape[2]
    first = change.slots[heads, places] * size
    tokens = first[:, None] % block_size + torch.arange(size, device=first.device)
    found = (blocks[first // block_size][:, None], heads[:, None], tokens)
    out[heads, places] = pool[tuple(part.to(pool.device) for part in found)].to(out.device)


def exchange(held: Tensor, wanted: Tensor) -> Change:
    """Let a working set that holds the chunks `held` [H_kv, k] hold `wanted` [H_kv, k], moving nothing that
    stays. What comes stands in the free slots in the order in which it is wanted.

    A slot of -1 holds nothing. No chunk is in a head of either twice.
    """
    slots, is_missing = held.clone(), torch.ones_like(held, dtype=torch.bool)
    for head, (own, new) in enumerate(zip(held, wanted, strict=True)):
        is_missing[head] = ~torch.isin(own, new)
        slots[head, is_missing[head]] = new[~torch.isin(new, own)]
    return Change(slots=slots, is_missing=is_missing)
