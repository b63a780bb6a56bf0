"""What is said of a machine: of GPUs whether they are used and what to do if they are not, and of kernels."""

from pathlib import Path

import pytest
import torch

from kvchat.engine.kernels import machine_report
from kvchat.engine.kernels.health import HEALTH
from kvchat.engine.kernels.native.library import library

pytestmark = pytest.mark.cpu


@pytest.fixture
def no_cuda(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return the directory of a machine's PCI devices, on which torch finds no GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(machine_report, "_PCI_DEVICES", tmp_path)
    return tmp_path


def plug_in(devices: Path, vendor: str, kind: str) -> None:
    slot = devices / f"0000:0{len(list(devices.iterdir()))}:00.0"
    slot.mkdir()
    (slot / "vendor").write_text(f"{vendor}\n")
    (slot / "class").write_text(f"{kind}\n")


def test_a_machine_without_a_gpu_needs_no_advice(no_cuda: Path) -> None:
    plug_in(no_cuda, "0x8086", "0x030000")  # another maker's
    plug_in(no_cuda, "0x10de", "0x040300")  # its sound
    (no_cuda / "empty").mkdir()
    assert machine_report.this_machine().gpu_advice is None


@pytest.mark.parametrize(("cuda", "words"), [(None, "without CUDA"), ("13.0", "no driver")])
def test_a_gpu_that_is_not_used_is_told_with_what_to_do(
    no_cuda: Path, cuda: str | None, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plug_in(no_cuda, "0x10de", "0x030200")
    monkeypatch.setattr(torch.version, "cuda", cuda)
    found = machine_report.this_machine()
    assert found.gpu == "a GPU that is not used"
    assert words in (found.gpu_advice or "")


@pytest.mark.parametrize(
    ("capability", "problems", "words"),
    [
        ((9, 0), {}, None),
        ((7, 5), {}, "compute capability 7.5"),
        ((9, 0), {"attention": "its numbers are 3 away"}, "attention: its numbers are 3 away"),
    ],
)
def test_kernels_that_are_not_used_are_told_with_the_reason(
    capability: tuple[int, int], problems: dict[str, str], words: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("kvchat.engine.kernels.triton_support._capability", lambda device: capability)
    monkeypatch.setattr(HEALTH, "problems", problems)
    _, advice = machine_report._gpu()
    assert (advice is None) if words is None else (words in (advice or ""))


@pytest.mark.parametrize("is_rounded", [True, False])
def test_who_rounds_prompts_says_so(is_rounded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    found = library()
    if found is None:
        pytest.skip("there are no native kernels here")
    monkeypatch.setattr(machine_report, "rounds_products", lambda level: is_rounded)
    kernels = machine_report.this_machine().kernels
    assert found.level in kernels
    assert ("8 bits over int8 and int4 weights" in kernels) is is_rounded
