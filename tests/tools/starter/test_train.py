"""Training lowers the loss and continues from a checkpoint as if it had not stopped."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tools.starter.batches import Batches
from tools.starter.network import Shape
from tools.starter.schedule import SHORT_MIX, Setting, Stage
from tools.starter.tokenizer import train_tokenizer
from tools.starter.train import Trainer, smoke

pytestmark = [pytest.mark.cpu, pytest.mark.usefixtures("one_thread")]

SETTING = Setting(
    stage=Stage(num_tokens=0, lengths=(128,), mix=SHORT_MIX, start_rate=1e-3, end_rate=1e-3), rate=1e-3
)
WITH_MUON = Setting(stage=replace(SETTING.stage, muon=True), rate=5e-3)


def test_a_short_training_lowers_the_loss() -> None:
    first, last = smoke()
    assert last < first - 1


@pytest.mark.parametrize("setting", [SETTING, WITH_MUON], ids=["adamw", "muon"])
def test_a_resumed_training_takes_the_same_steps(tmp_path: Path, setting: Setting) -> None:
    tokenizer = train_tokenizer(num_turns=500)
    straight = Trainer(Shape(), tokenizer, seed=3)
    straight.step(setting, num_sequences=2)
    straight.save(tmp_path)
    resumed = Trainer(Shape(), tokenizer, seed=9)
    resumed.seed = 3
    resumed.load(tmp_path)
    assert resumed.progress == straight.progress
    losses = [trainer.step(setting, num_sequences=2) for trainer in (straight, resumed)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for name, parameter in straight.parameters.items():
        torch.testing.assert_close(parameter, resumed.parameters[name])


def test_what_is_kept_may_count_less_than_what_was_kept_before() -> None:
    trainer = Trainer(Shape(), train_tokenizer(num_turns=500), seed=3)
    kept = []
    for num_kept, share in ((1, 1.0), (2, 0.25)):
        trainer.step(SETTING, num_sequences=2)
        trainer.keep(num_kept, share)
        kept.append({name: p.detach().clone() for name, p in trainer.parameters.items()})
    for name, mean in trainer.mean.items():
        torch.testing.assert_close(mean, 0.75 * kept[0][name] + 0.25 * kept[1][name])


def test_a_training_may_start_anew_from_what_was_kept(tmp_path: Path) -> None:
    trainer = Trainer(Shape(), train_tokenizer(num_turns=500), seed=3)
    trainer.step(WITH_MUON, num_sequences=2)
    trainer.keep(1, 1.0)
    kept = {name: p.detach().clone() for name, p in trainer.parameters.items()}
    trainer.step(WITH_MUON, num_sequences=2)
    trainer.restart(1)
    trainer.save(tmp_path)
    fresh = Trainer(Shape(), trainer.tokenizer, seed=3)
    fresh.load(tmp_path)
    for name, parameter in fresh.parameters.items():
        assert torch.equal(parameter, kept[name])
    assert not any(momentum.any() for momentum in fresh.muon.momenta.values())
    fresh.step(WITH_MUON, num_sequences=2)
    moved = {name: p.detach().clone() for name, p in fresh.parameters.items()}
    fresh.restart(1)
    assert all(torch.equal(p, moved[name]) for name, p in fresh.parameters.items())


def test_only_answers_and_their_ends_weigh_in_the_loss() -> None:
    tokenizer = train_tokenizer(num_turns=500)
    ids, weights = Batches(tokenizer).draw(5, 4, 512, SHORT_MIX)
    for row, row_weights in zip(ids.tolist(), weights.tolist(), strict=True):
        role = None
        for token, weight in zip(row, row_weights, strict=True):
            if token in (2, 3, 4):
                role = token
                assert weight == 0
            else:
                assert (weight > 0) == (role == 4)
