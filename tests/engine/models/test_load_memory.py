"""Weights come out of their files whole, and are not resident twice on the way."""

import sys
from pathlib import Path
from weakref import finalize

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from kvchat.engine.models.linear.packed import pack_linears
from kvchat.engine.models.load import own_memory

pytestmark = pytest.mark.cpu

MIB = 2**20
linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what is mapped")


def resident_file_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssFile:"))


def test_tensors_keep_their_numbers_whatever_becomes_of_the_file(tmp_path: Path) -> None:
    """Odd sizes share pages with their neighbours, of which only some have been copied when these go."""
    wanted = {f"w{number}": torch.randn(700 + 37 * number, 3) for number in range(20)}
    save_file(wanted, tmp_path / "w.safetensors")
    mapped = load_file(tmp_path / "w.safetensors")
    beside = torch.randn(50_000)
    kept = beside.clone()
    own_memory([*mapped.values(), beside])
    with (tmp_path / "w.safetensors").open("r+b") as file:
        file.write(bytes(1000))
        file.truncate(1000)
    assert all(torch.equal(mapped[name], tensor) for name, tensor in wanted.items())
    assert torch.equal(beside, kept)


@linux
def test_what_has_been_copied_is_not_resident_any_more(tmp_path: Path) -> None:
    save_file({f"w{number}": torch.ones(MIB) for number in range(16)}, tmp_path / "w.safetensors")
    before = resident_file_bytes()
    mapped = load_file(tmp_path / "w.safetensors")
    views = [tensor.view(-1) for tensor in mapped.values()]
    own_memory(mapped.values())
    assert resident_file_bytes() - before < 8 * MIB
    assert all(bool((view == 1).all()) for view in views), "what is still mapped is read again"


def test_plain_weights_go_as_soon_as_they_are_packed() -> None:
    """Else all of them are in memory twice for a moment."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(4)))
    first, last = (model.get_submodule(name) for name in ("0", "3"))
    is_last_plain: list[bool] = []
    finalize(
        first.get_submodule("0"), lambda: is_last_plain.append(type(last.get_submodule("0")) is nn.Linear)
    )
    if pack_linears(model):
        assert is_last_plain == [True]
