"""The GPU benchmark runs from a plain checkout with what a GPU machine has, and says where there is none."""

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytestmark = pytest.mark.cpu

ROOT = Path(__file__).parent.parent
LAUNCH = """
import re, runpy, sys
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, packages_distributions, requires

def brought_by(names):
    # These distributions and all that they need.
    known, left = set(), list(names)
    while left:
        name = re.sub("[-_.]+", "-", left.pop()).lower()
        if name in known:
            continue
        try:
            needed = requires(name) or []
        except PackageNotFoundError:
            continue
        known.add(name)
        left += [re.match("[A-Za-z0-9_.-]+", line)[0] for line in needed if "extra ==" not in line]
    return known

THEIRS = brought_by(["torch", "triton", "transformers"])
OWNERS = {
    top: {re.sub("[-_.]+", "-", owner).lower() for owner in owners}
    for top, owners in packages_distributions().items()
}

class OnlyTheirs(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in ("kvchat", "benchmarks") and top in OWNERS and not OWNERS[top] & THEIRS:
            return None
        return super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = OnlyTheirs
assert PathFinder.find_spec("pytest") and not OnlyTheirs.find_spec("pytest")

class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in "textual typer xxhash platformdirs markdown_it cryptography".split():
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, NotInstalled())
sys.argv = ["benchmarks.gpu", *sys.argv[1:]]
runpy.run_module("benchmarks.gpu", run_name="__main__")
"""


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the benchmark where nothing can be imported but what torch, triton and transformers bring; neither
    the interface nor the store could be.
    """
    command = [sys.executable, "-c", LAUNCH, *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)


def check_report(ended: subprocess.CompletedProcess[str], path: Path) -> None:
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    report = json.loads(path.read_text())
    assert report["is_dry"]
    assert report["commit"]
    assert report["versions"]["torch"]
    assert all(part["figures"] and part["problem"] is None for part in report["parts"])
    assert len(report["parts"]) >= 9
    names = " ".join(figure["name"] for figure in report["parts"][-1]["figures"])
    ways = ("kvchat decodes 1", "transformers generate, 1", "continuous batching", "static cache")
    for way in (*ways, "kvchat generate, 1 beside"):
        assert way in names, ended.stdout[-3000:]


def test_every_part_runs_without_a_gpu(tmp_path: Path) -> None:
    """The two models are one where nothing is measured."""
    path = tmp_path / "gpu.json"
    parts = ["ceilings", "kernels", "decode", "prefill", "latent", "moves", "storing", "transfers"]
    words = ("--dry-run", "--plain", "--json", str(path), "--svg", str(tmp_path / "plots"))
    check_report(run(*words, "--only", *parts, "shadows", "1B"), path)
    figures = [figure for part in json.loads(path.read_text())["parts"] for figure in part["figures"]]
    plot = ElementTree.parse(tmp_path / "plots" / "gpu.svg").getroot()
    told = [text.text for text in plot.iter("{http://www.w3.org/2000/svg}text")]
    assert len(told) == 1 + 2 * len(figures), "a title, and of each figure its name and its number"
    assert all(any(text.endswith(figure["name"].strip()) for text in told if text) for figure in figures)


@pytest.mark.slow
def test_every_part_runs_with_interpreted_kernels(tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    check_report(run("--dry-run", "--json", str(path)), path)


def test_a_machine_without_a_gpu_is_told_with_code_2() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    ended = run()
    assert ended.returncode == 2
    assert "no GPU" in ended.stdout


def test_a_part_that_fails_or_has_no_time_leaves_the_others() -> None:
    import torch

    from benchmarks.gpu.parts import Part, run_parts
    from benchmarks.gpu.stage import Figure, Stage

    def works(stage: Stage):  # type: ignore[no-untyped-def]
        yield Figure(name="speed", unit="GB/s", value=1.0, low=1.0, high=1.0)

    def fails(stage: Stage):  # type: ignore[no-untyped-def]
        yield from works(stage)
        raise RuntimeError("out of luck")

    stage = Stage(device=torch.device("cpu"), is_dry=False, deadline_s=float("inf"), seed=1)
    parts = [Part(name="fails", run=fails), Part(name="works", run=works)]
    first, second = run_parts(parts, stage, lambda text: None)
    assert (len(first.figures), first.problem) == (1, "RuntimeError: out of luck")
    assert (len(second.figures), second.problem) == (1, None)
    stage.deadline_s = float("-inf")
    assert all(outcome.problem for outcome in run_parts(parts, stage, lambda text: None))


def test_what_is_found_is_kept_after_each_part_and_a_lost_kernel_is_told() -> None:
    import torch

    from benchmarks.gpu.parts import Part, run_parts
    from benchmarks.gpu.stage import Figure, Stage
    from kvchat.engine.kernels.health import Health

    health, kept = Health(), []

    def loses(stage: Stage):  # type: ignore[no-untyped-def]
        health.refuse("attention", "it does not compile")
        yield Figure(name="speed", unit="GB/s", value=1.0, low=1.0, high=1.0)

    stage = Stage(device=torch.device("cpu"), is_dry=False, deadline_s=float("inf"), seed=1)
    parts = [Part(name="loses", run=loses), Part(name="goes on", run=loses)]
    first, second = run_parts(
        parts, stage, lambda text: None, lambda found: kept.append([part.name for part in found]), health
    )
    assert kept == [["loses"], ["loses", "goes on"]]
    assert (
        first.problem
        == "plain operations were measured, a kernel is lost: ['attention: it does not compile']"
    )
    assert (len(first.figures), second.problem) == (1, None)
