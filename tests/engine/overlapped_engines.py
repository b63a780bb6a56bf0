"""Engines on a processor that hand steps in ahead, by the code that a GPU runs, unrecorded."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kvchat.engine.api.config import EngineConfig
from kvchat.engine.engine import Engine
from kvchat.engine.formats.format_table import metadata_builders
from kvchat.engine.forward.decode_graphs import DecodeGraphRunner, compute_anew
from kvchat.engine.forward.layerwise_check import walking_pass
from kvchat.engine.forward.runner import Runner
from kvchat.engine.models.weights_setting import WeightSource
from kvchat.engine.sampling.sampler import Sampler
from kvchat.engine.scheduling.scheduler import Drafter
from kvchat.engine.sequences.batch_plan import Batch
from kvchat.engine.startup.gpu import limits_of
from kvchat.engine.startup.parts import EngineParts
from kvchat.engine.startup.weights import load_candidate
from tests.engine.tiny_models import RecordingRunner, build, make_computing_slow

BATCH_SIZES = (1, 8)


class AheadRunner(RecordingRunner):
    """Notes what is computed, in order, and what of it ahead."""

    def __init__(self, inner: Runner, parts: EngineParts) -> None:
        super().__init__(inner, parts.pool)
        self.ahead: list[Batch] = []

    def note(self, batch: Batch) -> None:
        self._inner.note(batch)

    def run_ahead(self, batch: Batch, token_ids: Tensor) -> Tensor | None:
        logits = self._inner.run_ahead(batch, token_ids)
        if logits is not None:
            self.ahead.append(batch)
            for chunk, row in zip(batch.chunks, logits, strict=True):
                self.rows[chunk.sequence, chunk.start] = row
        return logits


def open_ahead(
    model_dir: Path,
    drafter: Drafter | None = None,
    *,
    is_ahead: bool = True,
    walks: bool = False,
    **settings: Any,
) -> tuple[Engine, AheadRunner]:
    """Return an engine as `tiny_models.open_recorded` does.

    Args:
        is_ahead: if not, the engine waits for the tokens of every step, and is the same otherwise.
        walks: pass through the layers one by one, as on a GPU.
    """
    config = EngineConfig(**{"device": "cpu", "block_size": 16, "seed": 0, "speculate": "off"} | settings)
    parts = build(model_dir, config)
    make_computing_slow(parts.rates)
    forward = getattr(parts.runner._forward, "_own", parts.runner._forward)  # unfused
    groups = parts.manager.groups
    if walks:
        own = load_candidate(
            WeightSource(model_dir=model_dir), config, torch.device("cpu")
        )  # nothing is packed
        forward, reason = walking_pass(own.loaded, own.served, parts.pool)
        assert reason is None
    limits = limits_of(groups, parts.pool, parts.info.max_context)
    steps = DecodeGraphRunner(forward, groups, limits, compute_anew, BATCH_SIZES)
    steps.prepare()
    runner = AheadRunner(Runner(forward, metadata_builders(groups, config.block_size), steps), parts)
    parts = replace(
        parts,
        runner=runner,
        runs_ahead=is_ahead,
        sampler=Sampler(config.seed, draws_there=True),
        drafter=drafter or parts.drafter,
    )
    return Engine(parts), runner
