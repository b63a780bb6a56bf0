"""An engine that looks through shadows as a GPU does says what a processor says, word by word.

The GPU's side is a program of its own: its kernels run under the Triton interpreter, blocks lie in host
memory, keys are made of projections, and values are loaded on a lane beside that.
"""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.engine.conftest import TinyModels
from tests.engine.formats.shadow.told import ANSWER, PROMPT, Told, tell
from tests.engine.kernels.interpreted import NEEDS_TRITON
from tests.engine.tiny_models import reference

pytestmark = [pytest.mark.cpu, NEEDS_TRITON]


@pytest.fixture(scope="module")
def model_dir(tiny: TinyModels) -> Path:
    return tiny("llama", num_hidden_layers=2)


@pytest.fixture(scope="module")
def both(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Told, Told]:
    """Return what a processor and what the GPU's kernels made of the story."""
    place = tmp_path_factory.mktemp("told")
    words = [str(model_dir), str(place / "theirs"), str(place / "told.pt")]
    command = [sys.executable, "-m", "tests.engine.formats.shadow.run_interpreted_told", *words]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-4000:]
    found = torch.load(place / "told.pt")
    assert found.pop("problems") == {}, "a kernel was refused, so something else has run"
    return tell(model_dir, place / "ours"), Told(**found)


def test_the_same_words_are_said_in_turns_forks_and_when_it_is_taken_up(both: tuple[Told, Told]) -> None:
    ours, theirs = both
    assert (ours.is_remote, theirs.is_remote) == (False, True)
    assert theirs.tokens == ours.tokens


def test_the_same_chunks_are_chosen_and_as_many_of_them_were_at_hand(both: tuple[Told, Told]) -> None:
    ours, theirs = both
    assert theirs.chosen == ours.chosen
    assert theirs.counts == ours.counts
    assert all(0 < fetched < wanted for wanted, fetched, _ in theirs.counts)


def test_logits_differ_by_rounding_alone(both: tuple[Told, Told], model_dir: Path) -> None:
    """And by more from those of a model that sees all, so the comparison could fail."""
    ours, theirs = both
    torch.testing.assert_close(theirs.logits, ours.logits, atol=1e-3, rtol=1e-3)
    exact = reference(model_dir).logits(ours.tokens[: PROMPT + ANSWER])
    assert not torch.allclose(exact[PROMPT - 1 : -1], ours.logits[:ANSWER], atol=0.05)
