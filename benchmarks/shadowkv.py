"""What a shadow of a long context takes of the device, loses, and gains: `python -m benchmarks.shadowkv` with
`--memory`, `--quality`, `--frontier`, `--decode` or `--gpu`, and `--save` to keep the table, and the
frontier's plot. `--gpu` times the published setting, see `benchmarks.gpu.shadow`; with no GPU it ends with 2.

One layer of Llama 3 8B's shape is filled in bfloat16 with keys of a low rank before rotation, takes 128
more tokens, and all tensors that it keeps on the device are counted; a model has 32 such layers. Beside it
stands what the exact cache of the layer takes, counted from its tensors too, and the ratio of the published
layout by its own formula, with the efficient kernels' numbers of outliers. Ends with 1 where a target is
missed.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.circumstances import circumstances
from benchmarks.gpu.parts import line
from benchmarks.gpu.shadow import DRY_SETTING, compared, num_layers_of
from benchmarks.gpu.shadow import SETTINGS as GPU_SETTINGS
from benchmarks.gpu.stage import Stage
from benchmarks.shadow_decode import LEAST_RATIO as LEAST_DECODE_RATIO
from benchmarks.shadow_decode import measure_decode
from benchmarks.shadow_quality import AT_MOST_LOST, LENGTH, LONGEST, measure_frontier, measure_quality
from benchmarks.table import render
from kvchat.engine.formats.shadow.copy_on_write_rows import Held
from kvchat.engine.formats.shadow.gpu_resources import GpuResources
from kvchat.engine.formats.shadow.layer import BlockChunks, ShadowLayer
from kvchat.engine.formats.shadow.rotary import Rotary
from kvchat.engine.formats.shadow.settings import ShadowSettings
from kvchat.engine.kernels.paged_attention.args import KVPair
from kvchat.engine.kernels.stream_protocol import InlineStreams

RESULTS = Path(__file__).parent / "results"
NUM_LAYERS, NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 32, 32, 8, 128
WIDTH = NUM_KV_HEADS * HEAD_DIM
KEY_RANK = 120
GENERATED = 128
PIECE_LEN = 4096
BLOCK_SIZE = 64
MIB = 2**20
NO_GPU = 2
LEAST_RATIO = 6.0
TOLERANCE = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A context, the tokens a step chooses of it, and the ratio of the published layout."""

    num_tokens: int
    budget: int
    published: float

    @property
    def shadow(self) -> ShadowSettings:
        return ShadowSettings(budget=self.budget, num_outliers=self.budget // 1024 * 24, is_remote=True)


SETTINGS = (
    Setting(num_tokens=61_440, budget=1024, published=6.02),
    Setting(num_tokens=124_928, budget=2048, published=6.11),
    Setting(num_tokens=249_856, budget=4096, published=6.14),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes of one layer: of the exact cache, and of the shadow by part."""

    full_bytes: int
    device: dict[str, int]

    @property
    def ratio(self) -> float:
        return self.full_bytes / sum(self.device.values())


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shadowkv", description="Shadows of contexts.")
    kind = parser.add_mutually_exclusive_group(required=True)
    kind.add_argument("--memory", action="store_true", help="count bytes on the device")
    kind.add_argument("--quality", action="store_true", help="ask the starter model the built-in questions")
    kind.add_argument("--frontier", action="store_true", help="ask fewer of them in other formats too")
    kind.add_argument("--decode", action="store_true", help="time attention of decoded tokens beside exact")
    kind.add_argument("--gpu", action="store_true", help="tokens a second of layers of 8B's shape on a GPU")
    parser.add_argument("--dry-run", action="store_true", help="of --gpu: tiny sizes on a processor")
    parser.add_argument("--save", action="store_true", help=f"write the table to {RESULTS.name}/ too")
    parser.add_argument("--quick", action="store_true", help="ask a few of the frontier's questions")
    lengths = f"tokens of a text that is asked about; otherwise {LONGEST}, and {LENGTH} for the frontier"
    parser.add_argument("--length", type=int, help=lengths)
    arguments = parser.parse_args()
    name = next(
        name for name in ("memory", "quality", "frontier", "decode", "gpu") if getattr(arguments, name)
    )
    measure = {
        "memory": _memory,
        "quality": lambda: _quality(arguments.length or LONGEST),
        "frontier": lambda: _frontier(arguments),
        "decode": _decode,
        "gpu": lambda: _gpu(is_dry=arguments.dry_run),
    }
    if arguments.gpu and not (arguments.dry_run or torch.cuda.is_available()):
        print(f"there is no GPU that torch {torch.__version__} can use; --dry-run runs without one")
        return NO_GPU
    lines, is_met = measure[name]()
    if arguments.save:
        about = circumstances("shadowkv", quick=arguments.quick).replace(
            "benchmarks shadowkv", f"benchmarks.shadowkv --{name}"
        )
        text = "\n".join((f"{name} of a shadowed context", "", about, "", *lines)) + "\n"
        (RESULTS / f"shadowkv-{name}.txt").write_text(text)
    return 0 if is_met else 1


def _memory() -> tuple[list[str], bool]:
    lines, is_met = [_head()], True
    print(lines[0], flush=True)
    for setting in SETTINGS:
        memory = measure_memory(setting)
        lines.append(_line(setting, memory))
        print(lines[-1], flush=True)
        is_close = abs(memory.ratio / setting.published - 1) <= TOLERANCE
        is_met = is_met and is_close and memory.ratio >= LEAST_RATIO
    lines.append(
        f"at least {LEAST_RATIO} x, within {TOLERANCE:.0%} of the published: {'yes' if is_met else 'NO'}"
    )
    print(lines[-1])
    return lines, is_met


def _quality(length: int) -> tuple[list[str], bool]:
    rows = measure_quality(length=length)
    print(render(rows))
    (lost,) = [row for row in rows[6:9] if row.unit == "points"]
    return [f"  texts of {length:,} tokens", *render(rows).split("\n")], lost.median <= AT_MOST_LOST


def _frontier(arguments: argparse.Namespace) -> tuple[list[str], bool]:
    rows, plot = measure_frontier(length=arguments.length or LENGTH, quick=arguments.quick)
    print(render(rows))
    if arguments.save:
        (RESULTS / "shadowkv-frontier.svg").write_text(plot)
    return render(rows).split("\n"), True


def _decode() -> tuple[list[str], bool]:
    rows = measure_decode()
    print(render(rows))
    return render(rows).split("\n"), all(row.median > LEAST_DECODE_RATIO for row in rows[2::3])


def _gpu(*, is_dry: bool) -> tuple[list[str], bool]:
    stage = Stage(
        device=torch.device("cpu" if is_dry else "cuda"), is_dry=is_dry, deadline_s=float("inf"), seed=1
    )
    lines: list[str] = []
    for setting in (DRY_SETTING,) if is_dry else GPU_SETTINGS:
        for figure in compared(stage, setting, num_layers_of(setting)):
            lines.append(line(figure))
            print(lines[-1], flush=True)
    return lines, True


def measure_memory(setting: Setting) -> Memory:
    """Fill one layer and count."""
    rotary = Rotary(_turn)
    num_tokens = setting.num_tokens
    keys = torch.empty(num_tokens + GENERATED, NUM_KV_HEADS, HEAD_DIM, dtype=torch.bfloat16)
    directions = _randn(KEY_RANK, WIDTH, seed=1) / WIDTH**0.5
    for start in range(0, len(keys), PIECE_LEN):
        piece = keys[start : start + PIECE_LEN]
        before = (_randn(len(piece), KEY_RANK, seed=start + 2) @ directions).view(piece.shape)
        piece.copy_(rotary.turned(before, torch.arange(start, start + len(piece))))
    values = torch.zeros_like(keys)
    full_bytes = sum(side.untyped_storage().nbytes() * num_tokens // len(side) for side in (keys, values))
    remote = GpuResources(InlineStreams(), Held())
    layer = ShadowLayer.of_prompt(
        setting.shadow, rotary, keys[:num_tokens], values[:num_tokens], Held(), remote
    )
    query = _randn(GENERATED, NUM_HEADS, HEAD_DIM, seed=0).bfloat16()
    # All keys lie on a basis, so of them no block is read: those of values stand for both.
    pool = values.unflatten(0, (-1, BLOCK_SIZE)).transpose(1, 2).contiguous()
    blocks = BlockChunks(KVPair(pool, pool), torch.arange(len(pool)))
    layer.attend(query, keys[num_tokens:], values[num_tokens:], HEAD_DIM**-0.5, blocks)
    assert layer.stock.compressed_keys.are_on_bases
    device = {name: _allocated(tensors) for name, tensors in layer.stock.device_tensors().items()}
    return Memory(full_bytes=full_bytes, device=device)


def _allocated(tensors: list[Tensor]) -> int:
    """Return the bytes of all storages that tensors lie in, each counted once and whole."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in tensors}
    return sum(storage.nbytes() for storage in storages.values())


def _turn(positions: Tensor) -> tuple[Tensor, Tensor]:
    angles = positions[..., None] * 5e5 ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    both = torch.cat((angles, angles), dim=-1)
    return both.cos(), both.sin()


def _randn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _head() -> str:
    parts = ("keys", "bases", "landmarks", "exact", "working set", "numbers")
    names = "".join(f"{name:>12}" for name in parts)
    rest = f"{'in all':>9}{'ratio':>8}{'published':>11}{'32 layers, GiB':>18}"
    return f"MiB of a layer\n{'tokens':>8} {'budget':>7} {'full':>8}{names}{rest}"


def _line(setting: Setting, memory: Memory) -> str:
    total = sum(memory.device.values())
    parts = "".join(f"{num_bytes / MIB:>12.2f}" for num_bytes in memory.device.values())
    both = f"{NUM_LAYERS * memory.full_bytes / 2**30:.2f} -> {NUM_LAYERS * total / 2**30:.2f}"
    return (
        f"{setting.num_tokens:>8,} {setting.budget:>7,} {memory.full_bytes / MIB:>8.1f}{parts}"
        f"{total / MIB:>9.2f}{memory.ratio:>8.3f}{setting.published:>11.2f}{both:>18}"
    )


if __name__ == "__main__":
    raise SystemExit(main())
