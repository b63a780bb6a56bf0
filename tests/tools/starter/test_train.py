"""Training lowers the loss and continues from a checkpoint as if it had not stopped."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tools.starter.batches import Batches
from tools.starter.conversation import Mix
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


def test_a_training_may_change_to_muon_on_its_way(tmp_path: Path) -> None:
    trainer = Trainer(Shape(), train_tokenizer(num_turns=500), seed=3)
    first = trainer.step(SETTING, num_sequences=4)
    for _ in range(6):
        trainer.step(WITH_MUON, num_sequences=4)
    trainer.save(tmp_path)
    trainer.load(tmp_path)
    assert trainer.step(SETTING, num_sequences=4) < first


def test_what_is_shipped_is_the_mean_of_what_was_kept(tmp_path: Path) -> None:
    trainer = Trainer(Shape(), train_tokenizer(num_turns=500), seed=3)
    kept = []
    for num_kept in (1, 2):
        trainer.step(SETTING, num_sequences=2)
        trainer.keep(num_kept)
        kept.append({name: p.detach().clone() for name, p in trainer.parameters.items()})
        trainer.keep(num_kept)
        trainer.save(tmp_path)
        trainer.load(tmp_path)
    assert trainer.progress.num_kept == 2
    for name, mean in trainer.mean.items():
        torch.testing.assert_close(mean, (kept[0][name] + kept[1][name]) / 2)


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


def test_what_has_to_be_found_weighs_as_much_as_the_first_tokens() -> None:
    tokenizer = train_tokenizer(num_turns=500)
    mix = Mix(fact=1, query=1, faq=0, small=0, outside=0, skill=0, document=0, unknown_share=0)
    (ids,), (weights,) = (tensor.tolist() for tensor in Batches(tokenizer).draw(5, 1, 512, mix))
    answers = [
        start for start, token in enumerate(ids) if token == 4 and weights[start + 1 : start + 2] == [6]
    ]
    assert len(answers) > 5
    num_found = 0
    for start in answers[:-1]:
        end = ids.index(1, start)
        heavy = [index for index in range(start + 4, end) if weights[index] == 6]
        found = tokenizer.decode([ids[index] for index in heavy]).rstrip(".").strip()
        assert weights[start + 1 : start + 4] == [6, 6, 6]
        assert found in tokenizer.decode(ids[:start])
        num_found += len(heavy)
    assert num_found > 5


def test_batches_are_determined_by_their_seed() -> None:
    batches = Batches(train_tokenizer(num_turns=500))
    ids, weights = batches.draw(5, 2, 256, SHORT_MIX)
    again, _ = batches.draw(5, 2, 256, SHORT_MIX)
    assert ids.shape == weights.shape == (2, 257)
    assert torch.equal(ids, again)


def test_a_mix_says_whether_a_persons_words_are_spaced() -> None:
    tokenizer = train_tokenizer(num_turns=500)
    for is_spaced in (False, True):
        ids, _ = Batches(tokenizer).draw(5, 1, 512, replace(SHORT_MIX, is_spaced=is_spaced))
        texts = tokenizer.decode(ids[0].tolist(), skip_special_tokens=False).split("<|user|>")[1:]
        assert len(texts) > 5
        assert all(text.startswith(" ") == is_spaced for text in texts)


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
