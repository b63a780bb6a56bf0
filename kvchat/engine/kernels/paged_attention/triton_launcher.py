"""Launches of Triton attention kernels: arguments and outputs.

Single queries are computed in parts, which are merged; others write the result itself. Dimensions: T tokens
in the batch, H query heads, D head size of values, S parts, M tiles.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from kvchat.engine.kernels.merge_lse.triton import merge_lse
from kvchat.engine.kernels.paged_attention.args import AttentionArgs, StepTables
from kvchat.engine.kernels.triton_support import Tiling


@dataclass(frozen=True, slots=True)
class LaunchTarget:
    """Where a launch writes: the result [T, H, D], or parts [T * H, S, D] with their lse and counts."""

    out: Tensor
    lse: Tensor
    counts: Tensor
    most_parts: int
    is_split: bool

    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return what a kernel writes to, in its order."""
        return self.out, self.lse, self.counts


Launch = Callable[[Tensor, Tiling, LaunchTarget], None]
"""Takes sequence and first query of each tile [M, 2], the size of tiles, and where to write."""


def empty_result(query: Tensor, dim: int, args: AttentionArgs) -> Tensor:
    """Return room for the result [T, H, D]; zeros where rows may have no query, as those of tables may."""
    shape = query.shape[0], query.shape[1], dim
    return query.new_empty(shape) if args.spans else query.new_zeros(shape)


def attend(
    out: Tensor, tables: StepTables, sizes: tuple[int, int], decode: Tiling, prefill: Tiling, launch: Launch
) -> None:
    """Have all queries of a step computed: one launch for those that stand alone, one for the others.

    Args:
        sizes: query heads of a key-value head, and parts of a single query at most.
        decode, prefill: tilings of single queries and of others.
    """
    group, most_parts = sizes
    if tables.singles:
        in_parts(out, tables, most_parts, lambda target: launch(tables.single_tiles(), decode, target))
    if tables.others:
        launch(tables.other_tiles(prefill.block_m // group), prefill, whole(out))


def whole(out: Tensor) -> LaunchTarget:
    """Return the result as what a launch writes."""
    return LaunchTarget(out, out, out, 1, False)


def in_parts(
    out: Tensor, tables: StepTables, most_parts: int, launch: Callable[[LaunchTarget], None]
) -> None:
    """Have the single queries of a step computed by one launch, in up to so many parts, and merge these."""
    if most_parts == 1:
        launch(whole(out))
        return
    num_tokens, num_heads, dim = out.shape
    device = out.device
    parts = torch.empty(num_tokens * num_heads, most_parts, dim, dtype=torch.float32, device=device)
    lse = torch.empty(num_tokens * num_heads, most_parts, dtype=torch.float32, device=device)
    counts = torch.zeros(num_tokens * num_heads, dtype=torch.int32, device=device)
    launch(LaunchTarget(parts, lse, counts, most_parts, True))
    if len(tables.singles) == num_tokens:
        merge_lse(parts, lse, counts, out.view(num_tokens * num_heads, dim))
        return
    rows = tables.q_starts[tables.single_tiles()[:, 0].long()].long()
    chosen = (rows[:, None] * num_heads + torch.arange(num_heads, device=device)).flatten()
    out[rows] = merge_lse(parts[chosen], lse[chosen], counts[chosen]).view(-1, num_heads, dim).to(out.dtype)


def sequences(tables: StepTables) -> tuple[Tensor, ...]:
    """Return what tells a kernel of its sequences, in its order."""
    return tables.q_starts, tables.q_lens, tables.positions, tables.first_blocks, tables.tables


def scores(query: Tensor, args: AttentionArgs) -> tuple[Tensor, float, float]:
    """Return sinks, the factor of products and the soft cap; what there is not is not read."""
    sinks = query if args.sinks is None else args.sinks.contiguous()
    return sinks, args.softmax_scale, 0.0 if args.softcap is None else args.softcap


def constants(
    args: AttentionArgs, group: int, block_size: int, dims: tuple[int, int], is_split: bool
) -> dict[str, int | bool]:
    """Return what all such kernels are compiled for.

    Args:
        dims: head sizes of keys and of values.
    """
    return {
        "GROUP": group,
        "BLOCK_SIZE": block_size,
        "DIM_K": dims[0],
        "DIM_V": dims[1],
        "BLOCK_K": max(16, triton.next_power_of_2(dims[0])),
        "BLOCK_V": max(16, triton.next_power_of_2(dims[1])),
        "HAS_SOFTCAP": args.softcap is not None,
        "HAS_SINKS": args.sinks is not None,
        "IS_SPLIT": is_split,
    }


def options(tiling: Tiling) -> dict[str, int]:
    """Return tiles, warps, stages and registers of a launch."""
    registers = {} if tiling.max_registers is None else {"maxnreg": tiling.max_registers}
    return registers | {
        "BLOCK_M": tiling.block_m,
        "BLOCK_N": tiling.block_n,
        "num_warps": tiling.num_warps,
        "num_stages": tiling.num_stages,
    }
