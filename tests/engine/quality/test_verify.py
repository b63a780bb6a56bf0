"""What is compared when KV is verified: real deviations are found, and rounding is let pass."""

import struct
from contextlib import closing
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest
import torch

from kvchat.engine.api.config import EngineConfig
from kvchat.engine.api.ids import GroupId, root_key
from kvchat.engine.engine import Engine
from kvchat.engine.formats.fp8_latent.spec import Fp8LatentSpec
from kvchat.engine.kernels.fp8_record import Fp8Record
from kvchat.engine.kernels.latent_record.reference import pack
from kvchat.engine.memory.disk.block_file import BlockHeader, Region
from kvchat.engine.memory.disk.store import DiskStore
from kvchat.engine.quality.verify import Recompute, Verifier, deviation, tolerance
from kvchat.engine.startup.assembly import build_parts
from kvchat.engine.startup.parts import EngineParts
from kvchat.errors import ConfigError
from kvchat.session.kv.block_references import blocks_on
from tests.engine.conftest import TinyModels
from tests.engine.recurrent_models import save_recurrent
from tests.engine.tiny_models import KINDS, answer, open_engine, token_ids

pytestmark = pytest.mark.cpu

LAYOUT = (
    Region(name="layers.0.k", dtype="F32", shape=(1, 2, 1)),
    Region(name="layers.0.v", dtype="F32", shape=(1, 2, 1)),
)


def block(*numbers: float) -> bytes:
    return struct.pack("<4f", *numbers)


def test_a_deviation_is_relative_to_the_largest_number_of_its_own_tensor() -> None:
    computed = block(100.0, 1.0, 0.5, 0.25)
    assert deviation(computed, computed, LAYOUT) == 0.0
    assert deviation(block(101.0, 1.0, 0.5, 0.25), computed, LAYOUT) == pytest.approx(0.01)
    assert deviation(block(100.0, 1.0, 0.5, 0.3), computed, LAYOUT) == pytest.approx(0.1, rel=1e-5)


@pytest.mark.parametrize("odd", [float("nan"), inf, -inf])
def test_what_is_no_number_is_infinitely_far_away(odd: float) -> None:
    computed = block(1.0, 1.0, 1.0, 1.0)
    assert deviation(block(odd, 1.0, 1.0, 1.0), computed, LAYOUT) == inf
    assert tolerance(LAYOUT) < inf


def test_numbers_where_zeros_must_be_are_found() -> None:
    assert deviation(block(0.0, 1e-3, 1.0, 1.0), block(0.0, 0.0, 1.0, 1.0), LAYOUT) > 1.0


def test_records_are_compared_by_the_numbers_in_them() -> None:
    """One code's difference passes, as rounding may make it; other numbers, scales and NaN do not."""
    record = Fp8Record(16, 8)
    spec = Fp8LatentSpec(
        num_kv_heads=1,
        head_dim_k=record.num_bytes,
        head_dim_v=0,
        dtype="U8",
        rank=16,
        rope_dim=8,
        rope_layout="halves",
    )
    layout = (Region(name="layers.0.k", dtype="U8", shape=(1, 2, record.num_bytes)),)
    latents = torch.linspace(-1, 1, 32).view(2, 16)
    computed = pack(latents, torch.ones(2, 8), record)

    def found(token: int, place: int, code: int) -> float:
        stored = computed.clone()
        stored[token, place] = code
        return deviation(stored.numpy().tobytes(), computed.numpy().tobytes(), layout, spec)

    code, exponent = int(computed[0, 0]), int(computed[0, record.scales_at + 3])
    assert 0 < found(0, 0, code - 1) <= tolerance(layout)
    assert found(0, 0, code ^ 0x80) > tolerance(layout)
    assert found(0, record.scales_at + 3, exponent + 1) > tolerance(layout)
    assert found(0, 0, 0x7F) == inf
    assert found(1, record.rope_at + 1, 0x40) > tolerance(layout)


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_computed_behind_a_given_past_are_those_computed_from_the_beginning(
    kind: str, tiny: TinyModels
) -> None:
    """Across the window too: a sliding group needs only the blocks that it still sees."""
    parts = build_parts("tiny", tiny(kind), EngineConfig(device="cpu", block_size=16))
    engine = Engine(parts)
    recompute = Recompute(parts, chunk_len=64)
    ids = token_ids(150)
    groups = [group.id for group in parts.manager.groups]
    whole: dict[tuple[int, GroupId], bytes] = {}
    for computed in recompute.blocks(ids, 0, lambda number, group: None):
        num_tokens = min(16, 150 - 16 * computed.number)
        whole |= {(computed.number, group): computed.read(group, num_tokens) for group in groups}
    assert len(whole) == 10 * len(groups)
    layouts = parts.pool.layouts()
    for computed in recompute.blocks(ids, 96, lambda number, group: whole[number, group]):
        for group in groups:
            again = computed.read(group, min(16, 150 - 16 * computed.number))
            assert deviation(again, whole[computed.number, group], layouts[group]) < 1e-5
    logits = recompute.last_logits(ids, 0, lambda number, group: None)
    behind = recompute.last_logits(ids, 149, lambda number, group: whole[number, group])
    assert (logits - behind).abs().max() < 1e-4
    engine.check_integrity()
    engine.close()


def store_of(parts: EngineParts, cache_dir: Path) -> DiskStore:
    """Return the disk tier of an engine that has none itself."""
    return DiskStore(
        cache_dir,
        fingerprint=bytes.fromhex(parts.info.fingerprint),
        layouts=parts.pool.layouts(),
        block_size=16,
        limit_bytes=None,
    )


@pytest.mark.parametrize("view", ["window:64", "keydiff:64"])
def test_nothing_is_verified_over_a_view(view: str, tiny: TinyModels, tmp_path: Path) -> None:
    """What it computes behind its hidden blocks would be written under the names of exact blocks."""
    parts = build_parts("tiny", tiny("llama"), EngineConfig(device="cpu", block_size=16, cache_format=view))
    with (
        closing(Engine(parts)),
        closing(store_of(parts, tmp_path)) as block_store,
        pytest.raises(ConfigError, match="--cache-format exact"),
    ):
        Verifier(Recompute(parts, chunk_len=64), block_store)


def test_a_state_is_held_to_what_its_tokens_lead_to(tmp_path: Path) -> None:
    """One of other tokens is found, by itself and by the logits behind it; the right ones pass."""
    model_dir = save_recurrent("Qwen3_5", tmp_path / "model")
    config = EngineConfig(device="cpu", block_size=16, cache_dir=tmp_path / "cache")
    engine = open_engine(model_dir, block_size=16, cache_dir=tmp_path / "cache")
    text = token_ids(50)
    path = (*text, *answer(engine, text, 20).token_ids)
    engine.close()
    parts = build_parts("tiny", model_dir, replace(config, cache_dir=None))
    root = root_key(bytes.fromhex(parts.info.fingerprint))
    (state,) = (group.id for group in parts.manager.groups if group.is_state)
    with closing(Engine(parts)), closing(store_of(parts, tmp_path / "cache")) as block_store:
        targets = list(blocks_on(block_store, path, root, root))
        ends = [16 * one.number + len(one.token_ids) for one in targets if state in one.groups]
        assert ends[-1] == len(path) - 1, "behind all that was read"
        right = Verifier(Recompute(parts, chunk_len=32), block_store)
        assert len(list(right.check_path(path, targets))) == len(targets)
        assert (right.findings.different, right.findings.num_logits, right.findings.wrong_logits) == (
            [],
            1,
            0,
        )

        last = next(one for one in targets if 16 * one.number + len(one.token_ids) == ends[-1])
        header = BlockHeader.of(state, last.parent, last.token_ids)
        payload = block_store.read_if_sound(header)
        assert payload is not None
        numbers = torch.frombuffer(bytearray(payload), dtype=torch.float32)
        block_store.remove(last.key, state)
        block_store.write([(header, (-numbers).numpy().tobytes())])
        forged = Verifier(Recompute(parts, chunk_len=32), block_store)
        forged.check_block(path, targets, last)
        assert forged.findings.different == [last.key]
