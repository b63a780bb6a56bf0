"""Trains the starter model from nothing.

python -m tools.starter.train [--out DIR] [--minutes M] [--seed S] [--resume]
python -m tools.starter.train --smoke
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from tools.starter import MODEL_DIRECTORY
from tools.starter.batches import Batches
from tools.starter.export import export_model
from tools.starter.initialisation import initial_parameters
from tools.starter.muon import Muon
from tools.starter.network import Network, Shape
from tools.starter.schedule import (
    BATCH_TOKENS,
    STAGES,
    TOTAL_TOKENS,
    Setting,
    kept_share,
    num_kept_at,
    num_restarts_at,
    setting_at,
)
from tools.starter.tokenizer import train_tokenizer

BETAS, WEIGHT_DECAY = (0.9, 0.98), 0.05
# Beside Muon, AdamW moves the embedding and the norms only, at a share of Muon's rate.
MUON_WEIGHT_DECAY, BETAS_BESIDE_MUON, RATE_BESIDE_MUON = 0.02, (0.9, 0.95), 0.25
MAX_GRADIENT_NORM = 1.0
CHECKPOINT_S = 240.0
REPORT_STEPS = 20
BUILD_DIRECTORY = Path("build/starter")
# Without these the allocator returns every large tensor to the system and faults it in again: half the speed.
ALLOCATOR_SETTINGS = {
    "MALLOC_MMAP_THRESHOLD_": str(2**33),
    "MALLOC_TRIM_THRESHOLD_": str(2**33),
    "MALLOC_TOP_PAD_": str(2**28),
    "OMP_WAIT_POLICY": "PASSIVE",
    "TOKENIZERS_PARALLELISM": "false",
}


@dataclass(slots=True)
class Progress:
    """How far a training is; saved with every checkpoint."""

    num_steps: int = 0
    num_tokens: int = 0
    elapsed_s: float = 0.0
    num_kept: int = 0
    num_restarts: int = 0


class ThreadChooser:
    """Uses one thread or all, whichever was faster lately: on a busy machine more threads are slower."""

    PERIOD, TRIAL = 24, 2

    def __init__(self, max_threads: int) -> None:
        self._choices = sorted({1, max_threads})
        self._speeds = dict.fromkeys(self._choices, 0.0)
        self._best = 1

    def prepare(self, step: int) -> None:
        """Set the number of threads for `step`: at times the one that is not the best so far."""
        trial = len(self._choices) > 1 and step % self.PERIOD < self.TRIAL
        others = [choice for choice in self._choices if choice != self._best]
        self._current = others[0] if trial else self._best
        torch.set_num_threads(self._current)

    def observe(self, step: int, tokens_per_s: float) -> None:
        """Note the speed of `step`; after a trial the faster choice becomes the best."""
        old = self._speeds[self._current]
        fresh = step % self.PERIOD == 0 or not old
        self._speeds[self._current] = tokens_per_s if fresh else 0.7 * old + 0.3 * tokens_per_s
        if step % self.PERIOD == self.TRIAL - 1:
            self._best = max(self._choices, key=lambda choice: self._speeds[choice])

    @property
    def current(self) -> int:
        """Threads of the last step."""
        return self._current


class Trainer:
    """Weights, optimiser and progress of one training."""

    def __init__(self, shape: Shape, tokenizer: Tokenizer, seed: int) -> None:
        self.shape, self.tokenizer, self.seed = shape, tokenizer, seed
        self.parameters = initial_parameters(shape, seed)
        for parameter in self.parameters.values():
            parameter.requires_grad_(True)
        self.network = Network(shape, self.parameters)
        self.batches = Batches(tokenizer)
        self.progress = Progress()
        self.mean = {name: torch.zeros_like(p) for name, p in self.parameters.items()}
        matrices = [p for name, p in self.parameters.items() if p.dim() == 2 and "embed" not in name]
        self.others = [p for name, p in self.parameters.items() if p.dim() == 1 or "embed" in name]
        groups = [
            {"params": matrices, "weight_decay": WEIGHT_DECAY},
            {"params": self.others, "weight_decay": 0.0},
        ]
        self.adam = torch.optim.AdamW(groups, lr=0.0, betas=BETAS, fused=True)
        self.muon = Muon(matrices, MUON_WEIGHT_DECAY)

    def step(self, setting: Setting, num_sequences: int | None = None) -> float:
        """Take one step and return its loss.

        Args:
            setting: Stage and learning rate.
            num_sequences: Sequences in the batch, the stage's number if None.
        """
        stage, num_steps = setting.stage, self.progress.num_steps
        length = stage.length_at(num_steps)
        count = num_sequences or BATCH_TOKENS // length
        ids, weights = self.batches.draw(self.seed * 10_000_000 + num_steps, count, length, stage.mix)
        loss = self.network.loss(ids, weights)
        loss.backward()
        self._apply_gradients(setting)
        self.progress.num_steps += 1
        self.progress.num_tokens += count * length
        return loss.item()

    def _apply_gradients(self, setting: Setting) -> None:
        rate, betas = setting.rate, BETAS
        if setting.stage.muon:
            # Muon drops the gradients of the matrices, so that AdamW passes over them.
            self.muon.step(rate)
            rate, betas = rate * RATE_BESIDE_MUON, BETAS_BESIDE_MUON
        parameters = [p for p in self.parameters.values() if p.grad is not None]
        torch.nn.utils.clip_grad_norm_(parameters, MAX_GRADIENT_NORM)
        for group in self.adam.param_groups:
            group["lr"], group["betas"] = rate, betas
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)

    def keep(self, num_kept: int, share: float | None = None) -> None:
        """Let the weights as they are count in what is shipped, unless so many have been kept before.

        Args:
            share: How much they count; None: as much as each that was kept before.
        """
        if self.progress.num_kept >= num_kept:
            return
        self.progress.num_kept += 1
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                self.mean[name].lerp_(parameter, 1 / self.progress.num_kept if share is None else share)

    def restart(self, num_restarts: int) -> None:
        """Go on from what has been kept, with new moments, unless that was done so many times before."""
        if self.progress.num_restarts >= num_restarts:
            return
        self.progress.num_restarts += 1
        self.adam.state.clear()
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(self.mean[name])
            for momentum in self.muon.momenta.values():
                momentum.zero_()

    def save(self, directory: Path) -> None:
        """Write the model and a checkpoint from which training continues as if it had not stopped."""
        export_model(directory, self.shape, self.parameters, self.tokenizer)
        tensors: dict[str, Tensor] = {}
        for name, parameter in self.parameters.items():
            tensors[f"weight:{name}"] = parameter.detach()
            tensors[f"mean:{name}"] = self.mean[name]
            for key, value in self.adam.state[parameter].items():
                tensors[f"{key}:{name}"] = value
            if parameter in self.muon.momenta:
                tensors[f"momentum:{name}"] = self.muon.momenta[parameter]
        progress = self.progress
        metadata = {
            "steps": progress.num_steps,
            "tokens": progress.num_tokens,
            "elapsed_s": progress.elapsed_s,
            "kept": progress.num_kept,
            "restarts": progress.num_restarts,
        }
        partial = directory / "checkpoint.partial"
        save_file(tensors, partial, metadata={key: str(value) for key, value in metadata.items()})
        partial.replace(directory / "checkpoint.safetensors")

    def load(self, directory: Path) -> None:
        """Continue from the checkpoint in `directory`."""
        with safe_open(directory / "checkpoint.safetensors", "pt") as file, torch.no_grad():
            metadata = file.metadata()
            names = set(file.keys())
            for name, parameter in self.parameters.items():
                parameter.copy_(file.get_tensor(f"weight:{name}"))
                self.mean[name].copy_(file.get_tensor(f"mean:{name}"))
                keys = [key for key in ("step", "exp_avg", "exp_avg_sq") if f"{key}:{name}" in names]
                self.adam.state[parameter] = {key: file.get_tensor(f"{key}:{name}") for key in keys}
                if parameter in self.muon.momenta:
                    self.muon.momenta[parameter] = file.get_tensor(f"momentum:{name}")
        self.progress = Progress(
            num_steps=int(metadata["steps"]),
            num_tokens=int(metadata["tokens"]),
            elapsed_s=float(metadata["elapsed_s"]),
            num_kept=int(metadata["kept"]),
            num_restarts=int(metadata.get("restarts", 0)),
        )


def _position(progress: Progress, minutes: float | None) -> float:
    """Return the place in the table of stages: by tokens, or by time if the minutes are limited."""
    if minutes is None:
        return progress.num_tokens
    return progress.elapsed_s / (60 * minutes) * TOTAL_TOKENS


def _report(trainer: Trainer, setting: Setting, loss: float, tokens_per_s: float, num_threads: int) -> None:
    progress = trainer.progress
    print(
        f"step {progress.num_steps:6d}  {progress.num_tokens / 1e6:6.2f} Mtok  "
        f"{progress.elapsed_s / 60:5.1f} min  rate {setting.rate:.1e}  "
        f"loss {loss:.4f}  {tokens_per_s:6.0f} tok/s  {num_threads} threads",
        flush=True,
    )


def _keep(trainer: Trainer, position: float) -> None:
    if num_kept := num_kept_at(position):
        trainer.keep(num_kept, kept_share(num_kept))


def run(trainer: Trainer, directory: Path, minutes: float | None, max_threads: int) -> bool:
    """Train through the table of stages, with checkpoints in `directory`; say whether it came to the end.

    An interrupt (Ctrl-C or SIGTERM) writes a checkpoint before it ends the run.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    progress, chooser = trainer.progress, ThreadChooser(max_threads)
    losses: list[float] = []
    saved_s = window_s = progress.elapsed_s
    finished = False
    try:
        while (position := _position(progress, minutes)) < TOTAL_TOKENS:
            _keep(trainer, position)
            trainer.restart(num_restarts_at(position))
            setting = setting_at(position)
            chooser.prepare(progress.num_steps)
            started = time.perf_counter()
            losses.append(trainer.step(setting))
            step_s = time.perf_counter() - started
            chooser.observe(progress.num_steps - 1, BATCH_TOKENS / step_s)
            progress.elapsed_s += step_s
            if len(losses) == REPORT_STEPS:
                speed = REPORT_STEPS * BATCH_TOKENS / (progress.elapsed_s - window_s)
                _report(trainer, setting, sum(losses) / len(losses), speed, chooser.current)
                losses, window_s = [], progress.elapsed_s
            if progress.elapsed_s - saved_s > CHECKPOINT_S:
                trainer.save(directory)
                saved_s = progress.elapsed_s
        _keep(trainer, TOTAL_TOKENS)
        finished = True
    except KeyboardInterrupt:
        print("interrupted; continue with --resume", flush=True)
    trainer.save(directory)
    if finished:
        export_model(directory, trainer.shape, trainer.mean, trainer.tokenizer)
    return finished


def smoke(num_steps: int = 20, length: int = 128, num_sequences: int = 8) -> tuple[float, float]:
    """Train for a few steps on one thread and return the mean loss of the first and of the last steps.

    Raises:
        AssertionError: If the loss did not fall.
    """
    num_threads = torch.get_num_threads()
    # A second thread on a busy machine costs minutes here, and saves two seconds on an idle one.
    torch.set_num_threads(1)
    try:
        trainer = Trainer(Shape(), train_tokenizer(num_turns=3000), seed=0)
        stage = replace(STAGES[0], lengths=(length,), start_rate=1e-3, end_rate=1e-3)
        setting = Setting(stage=stage, rate=stage.start_rate)
        losses = [trainer.step(setting, num_sequences) for _ in range(num_steps)]
        with tempfile.TemporaryDirectory() as directory:
            trainer.save(Path(directory))
            trainer.load(Path(directory))
    finally:
        torch.set_num_threads(num_threads)
    first, last = sum(losses[:4]) / 4, sum(losses[-4:]) / 4
    assert last < first, f"the loss did not fall: {first:.3f} -> {last:.3f}"
    return first, last


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train the starter model of kvchat from nothing.")
    parser.add_argument(
        "--out",
        type=Path,
        help=f"directory for the model and the checkpoint; by default {BUILD_DIRECTORY}, and at the end the "
        "model takes the place of the shipped one",
    )
    parser.add_argument("--minutes", type=float, help="stretch or shrink the stages to this time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="most threads to use")
    parser.add_argument("--resume", action="store_true", help="continue from the checkpoint in --out")
    parser.add_argument(
        "--smoke", action="store_true", help="train for some seconds and check that the loss falls"
    )
    return parser.parse_args()


def main() -> None:
    """Run the command line."""
    arguments = _arguments()
    if any(name not in os.environ for name in ALLOCATOR_SETTINGS):
        # read by the C library and OpenMP at start only
        module = [sys.executable, "-m", "tools.starter.train", *sys.argv[1:]]
        os.execve(sys.executable, module, {**ALLOCATOR_SETTINGS, **os.environ})
    if arguments.smoke:
        first, last = smoke()
        print(f"loss {first:.3f} -> {last:.3f}")
        return
    directory = arguments.out or BUILD_DIRECTORY
    if arguments.resume:
        tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    else:
        tokenizer = train_tokenizer(seed=arguments.seed)
    trainer = Trainer(Shape(), tokenizer, arguments.seed)
    if arguments.resume:
        trainer.load(directory)
    if run(trainer, directory, arguments.minutes, arguments.threads) and arguments.out is None:
        export_model(MODEL_DIRECTORY, trainer.shape, trainer.mean, tokenizer)


if __name__ == "__main__":
    main()
