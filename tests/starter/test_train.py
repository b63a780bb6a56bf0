"""Training lowers the loss and continues from a checkpoint as if it had not stopped."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kvchat.starter.batches import Batches
from kvchat.starter.network import Shape
from kvchat.starter.schedule import SHORT_MIX, Setting, Stage
from kvchat.starter.tokenizer import train_tokenizer
from kvchat.starter.train import Trainer, smoke

pytestmark = [pytest.mark.cpu, pytest.mark.usefixtures("one_thread")]

SETTING = Setting(
    stage=Stage(num_tokens=0, length=128, mix=SHORT_MIX, start_rate=1e-3, end_rate=1e-3), rate=1e-3
)


def test_a_short_training_lowers_the_loss() -> None:
    first, last = smoke()
    assert last < first - 1


def test_a_resumed_training_takes_the_same_steps(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(num_turns=500)
    straight = Trainer(Shape(), tokenizer, seed=3)
    straight.step(SETTING, num_sequences=2)
    straight.save(tmp_path)
    resumed = Trainer(Shape(), tokenizer, seed=9)
    resumed.seed = 3
    resumed.load(tmp_path)
    assert resumed.progress == straight.progress
    losses = [trainer.step(SETTING, num_sequences=2) for trainer in (straight, resumed)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for name, parameter in straight.parameters.items():
        torch.testing.assert_close(parameter, resumed.parameters[name])


def test_batches_are_determined_by_their_seed() -> None:
    batches = Batches(train_tokenizer(num_turns=500))
    ids, weights = batches.draw(5, 2, 256, SHORT_MIX)
    again, _ = batches.draw(5, 2, 256, SHORT_MIX)
    assert ids.shape == weights.shape == (2, 257)
    assert torch.equal(ids, again)


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
