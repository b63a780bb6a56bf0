"""kvchat beside its peers on the processor: `python -m benchmarks.cpu [--quick] [--save] [--json FILE]
[--svg DIR]`.

Every engine runs the same random model in a process of its own, in turn, several rounds. Peers are measured
where their packages are: those of this interpreter, or of the one that `--peers` names.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.circumstances import circumstances
from benchmarks.cpu import files
from benchmarks.cpu.bounds import Bounds
from benchmarks.cpu.plot import svg
from benchmarks.cpu.process import EngineProcess
from benchmarks.cpu.shapes import BITS_PER_WEIGHT, SHAPES, Shape
from kvchat.engine.kernels.cpu_dtypes import is_emulated

RESULTS = Path(__file__).parents[1] / "results"
SVG_NAME = "cpu.svg"
KVCHAT_WEIGHTS = {"16": "bf16", "8": "int8", "4": "int4"}
CONTEXTS = (512, 4000, 16000)
PROMPT_TOKENS = 8000
"""How many a prompt's rounds compute at most, but for a first one."""
LONG_ROUND_S = 5
LEAST_DECODE_TOKENS = 4
Cell = tuple[str, str, str, int, int]
"""Shape, bits, what is done, context, batch."""


@dataclass(slots=True)
class Figures:
    """Tokens a second, by cell and engine, one for each round; and what could not be measured."""

    rates: dict[Cell, dict[str, list[float]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    limits: dict[Cell, list[float]] = field(default_factory=lambda: defaultdict(list))
    """What memory or matrix products allow, measured right before kvchat's figure of the same round."""
    peaks: dict[tuple[str, str, str], int] = field(default_factory=dict)
    engines: dict[str, dict[str, Any]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    shapes: tuple[Shape, ...]
    bits: tuple[str, ...]
    contexts: tuple[int, ...]
    batches: tuple[int, ...]
    rounds: int
    decode_tokens: int
    threads: int
    directory: Path
    peers: str


def main() -> int:
    arguments = _arguments()
    plan = _plan(arguments)
    figures = _read() if arguments.add else Figures()
    bounds = Bounds(plan.threads)
    for shape in plan.shapes:
        for bits in plan.bits:
            _forget(figures, shape.name, bits, plan.contexts)
            _measure(plan, shape, bits, figures, bounds)
            if arguments.save:  # a long run that is broken off keeps what it has measured
                _save(plan, figures, quick=arguments.quick)
    print(_table(figures))
    report = _report(plan, figures)
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    if arguments.svg:
        arguments.svg.mkdir(parents=True, exist_ok=True)
        (arguments.svg / SVG_NAME).write_text(svg(report))
    return 0


def _read() -> Figures:
    """Return what is in results/."""
    report = json.loads((RESULTS / "cpu.json").read_text())
    figures = Figures(engines=report["engines"], missing=report["left_out"])
    for row in report["rows"]:
        cell = (row["shape"], row["bits"], row["what"], row["context"], row["batch"])
        figures.rates[cell] = defaultdict(list, row["tokens_per_s"])
        figures.limits[cell] = row["bounds"]
    for name, peak in report["peak_bytes"].items():
        shape, bits, engine = name.split(" ")
        figures.peaks[shape, bits, engine] = peak
    return figures


def _forget(figures: Figures, shape: str, bits: str, contexts: tuple[int, ...]) -> None:
    """Let go of what was known of a model at these contexts: it is measured anew, in turn with its peers."""
    for cell in [cell for cell in figures.rates if cell[:2] == (shape, bits) and cell[3] in contexts]:
        del figures.rates[cell]
        figures.limits.pop(cell, None)
    if not any(cell[:2] == (shape, bits) for cell in figures.rates):
        figures.peaks = {key: peak for key, peak in figures.peaks.items() if key[:2] != (shape, bits)}


def _save(plan: Plan, figures: Figures, *, quick: bool) -> None:
    report = _report(plan, figures)
    note = circumstances("cpu", quick=quick)
    (RESULTS / "cpu.txt").write_text(
        f"cpu: kvchat beside its peers on the processor.\n\n{note}\n\n{_table(figures)}"
    )
    (RESULTS / "cpu.json").write_text(json.dumps(report, indent=1) + "\n")
    (RESULTS / SVG_NAME).write_text(svg(report))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cpu", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one shape and a short context")
    parser.add_argument("--save", action="store_true", help="write table, JSON and plot to results/")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file too")
    parser.add_argument("--svg", type=Path, metavar="DIR", help="draw the plot there too")
    parser.add_argument(
        "--add", action="store_true", help="keep what results/ has of other models and contexts"
    )
    parser.add_argument(
        "--peers", default=sys.executable, metavar="PYTHON", help="interpreter with the peers"
    )
    parser.add_argument("--shape", action="append", choices=tuple(SHAPES), help="instead of 360m and 1b")
    parser.add_argument("--bits", action="append", choices=tuple(BITS_PER_WEIGHT), help="instead of all")
    parser.add_argument("--context", action="append", type=int, choices=CONTEXTS, help="instead of all")
    parser.add_argument("--directory", type=Path, default=Path.home() / ".cache/kvchat-benchmarks")
    return parser.parse_args()


def _plan(arguments: argparse.Namespace) -> Plan:
    names = arguments.shape or (["360m"] if arguments.quick else ["360m", "1b"])
    return Plan(
        shapes=tuple(SHAPES[name] for name in names),
        bits=tuple(arguments.bits or BITS_PER_WEIGHT),
        contexts=tuple(arguments.context or (CONTEXTS[:1] if arguments.quick else CONTEXTS)),
        batches=(1, 8),
        rounds=5,
        decode_tokens=24 if arguments.quick else 32,
        threads=len(os.sched_getaffinity(0)),
        directory=arguments.directory,
        peers=arguments.peers,
    )


def _measure(plan: Plan, shape: Shape, bits: str, figures: Figures, bounds: Bounds) -> None:
    """Measure every engine on one model: prompts, then decoding behind them, in turn, round by round."""
    processes = _start(plan, shape, bits, figures)
    try:
        for context in plan.contexts:
            if context == 16000 and shape.name == "1b":
                continue
            ready = _prefill(plan, processes, (shape.name, bits, "prefill", context, 1), figures, bounds)
            for _ in range(plan.rounds):
                for name in ready:
                    for batch in plan.batches:
                        cell = (shape.name, bits, "decode", context, batch)
                        _decode(plan, processes[name], name, cell, figures, bounds)
    finally:
        for process in processes.values():
            process.close()


def _start(plan: Plan, shape: Shape, bits: str, figures: Figures) -> dict[str, EngineProcess]:
    plan.directory.mkdir(parents=True, exist_ok=True)
    source = files.write_safetensors(shape, plan.directory / shape.name)
    gguf = files.write_gguf(shape, source, bits, plan.directory / f"{shape.name}-{bits}.gguf")
    common = {
        "threads": plan.threads,
        "vocab_size": shape.vocab_size,
        "max_context": max(plan.contexts) + 256,
        "bits": bits,
    }
    kv_bytes = shape.kv_bytes(2 * max(plan.contexts) + 8 * 512, 2)
    wanted: dict[str, tuple[str, Path, dict[str, Any], str]] = {
        "kvchat": (
            "kvchat_engine",
            source,
            {
                "weights": KVCHAT_WEIGHTS[bits],
                "kv_bytes": kv_bytes,
                "cache_dir": str(plan.directory / "cache"),
            },
            sys.executable,
        ),
        "llama.cpp": ("llama_cpp_engine", gguf, {}, plan.peers),
        "openvino": ("openvino_engine", source, {}, plan.peers),
    }
    if bits != "4":  # which it computes in on a GPU only
        wanted["ctranslate2"] = ("ctranslate2_engine", source, {}, plan.peers)
    if bits == "16":
        dtype = "float32" if is_emulated(torch.bfloat16) else "bfloat16"  # its best
        wanted["transformers"] = ("transformers_engine", source, {"dtype": dtype}, sys.executable)
    processes = {}
    for name, (engine, model, settings, python) in wanted.items():
        try:
            processes[name] = EngineProcess(engine, model, common | settings, python)
            figures.engines[name] = processes[name].description
            figures.missing.pop(name, None)
        except OSError as error:
            figures.missing[name] = str(error)
            print(f"{name} is left out: {error}", file=sys.stderr)
    return processes


def _prefill(
    plan: Plan, processes: dict[str, EngineProcess], cell: Cell, figures: Figures, bounds: Bounds
) -> list[str]:
    """Compute a prompt in each engine, in turn, round by round; fewer rounds of a long one.

    Returns: who has it now.
    """
    shape, bits, _, context, _ = cell
    ready = list(processes)
    for _ in range(max(1, min(plan.rounds, PROMPT_TOKENS // context))):
        for name in list(ready):
            print(f"{shape} {bits} bits, {name}: prefill {context} …", file=sys.stderr)
            limit = _limit(cell, bounds) if name == "kvchat" else 0.0
            answer = _ask(processes[name], name, figures, do="prefill", length=context)
            if "seconds" in answer:
                _note(figures, cell, name, context / answer["seconds"], limit)
                _note_peak(figures, cell, name, answer)
            else:
                ready.remove(name)
                if reason := answer.get("cannot"):
                    figures.missing[f"{name}, {shape} {bits} bits @{context:,}"] = reason
    return ready


def _decode(
    plan: Plan, process: EngineProcess, name: str, cell: Cell, figures: Figures, bounds: Bounds
) -> None:
    _, _, _, context, batch = cell
    limit = _limit(cell, bounds) if name == "kvchat" else 0.0
    num_tokens = _num_tokens(plan, name, cell, figures)
    answer = _ask(process, name, figures, do="decode", length=context, tokens=num_tokens, batch=batch)
    if "seconds" in answer:
        _note(figures, cell, name, batch * num_tokens / answer["seconds"], limit)
        _note_peak(figures, cell, name, answer)


def _note_peak(figures: Figures, cell: Cell, name: str, answer: dict[str, Any]) -> None:
    """Of all contexts, those that were measured before included."""
    key = (*cell[:2], name)
    figures.peaks[key] = max(figures.peaks.get(key, 0), answer["peak_bytes"])


def _num_tokens(plan: Plan, name: str, cell: Cell, figures: Figures) -> int:
    """Return how many tokens a round decodes: fewer where they would take longer than `LONG_ROUND_S`.

    What is not measured yet counts as if a batch gained nothing over single answers.
    """
    shape, bits, what, context, batch = cell
    cells = (cell, (shape, bits, what, context, 1))
    known = next((rates for at in cells if (rates := figures.rates.get(at, {}).get(name))), None)
    if not known:
        return plan.decode_tokens
    return min(
        plan.decode_tokens, max(LEAST_DECODE_TOKENS, int(LONG_ROUND_S * statistics.median(known) / batch))
    )


def _ask(process: EngineProcess, name: str, figures: Figures, **request: Any) -> dict[str, Any]:
    """Return an engine's answer; nothing from one that has ended, which the table says."""
    try:
        return process.ask(**request)
    except OSError as error:
        if name not in figures.missing:
            print(f"{name} has ended: {error}", file=sys.stderr)
        figures.missing[name] = f"ended early: {error}"
        return {}


def _note(figures: Figures, cell: Cell, name: str, rate: float, limit: float) -> None:
    figures.rates[cell][name].append(rate)
    if limit:
        figures.limits[cell].append(limit)


def _limit(cell: Cell, bounds: Bounds) -> float:
    """Measure the tokens a second at which memory, or the matrix products of a prompt, are the limit."""
    shape = SHAPES[cell[0]]
    _, bits, what, context, batch = cell
    if what == "prefill":
        return bounds.flops() / (2 * shape.linear_weights)
    read = shape.linear_weights * BITS_PER_WEIGHT[bits] / 8 + batch * shape.kv_bytes(context, 2)
    return batch * bounds.read_bytes_per_s() / read


def _table(figures: Figures) -> str:
    names = ["kvchat", *(name for name in figures.engines if name != "kvchat")]
    head = (
        f"{'':34}"
        + "".join(f"{name:>26}" for name in names)
        + f"{'bound':>10}{'of bound':>10}{'best peer':>11}"
    )
    lines = [
        "tokens a second, median of rounds [least .. most]; the bound is measured before each of kvchat's",
        "rounds, and the share of it is the median of the rounds' shares",
        "",
        head,
    ]
    for cell, by_engine in _in_order(figures):
        shape, bits, what, context, batch = cell
        label = f"{shape} {bits} bits {what} @{context:,}" + (f" x{batch}" if batch > 1 else "")
        columns = "".join(f"{_spread(by_engine.get(name, [])):>26}" for name in names)
        owns, limits = by_engine.get("kvchat", []), figures.limits[cell]
        own, share = _median(owns), _median([rate / limit for rate, limit in zip(owns, limits, strict=True)])
        best = max((_median(rates) for name, rates in by_engine.items() if name != "kvchat"), default=0.0)
        ratio = f"{own / best:10.2f}x" if best else f"{'':>11}"
        lines.append(f"{label:34}{columns}{_median(limits):10.1f}{share:10.0%}{ratio}")
    lines += ["", "peak resident memory, MiB"]
    for (shape, bits, name), peak in figures.peaks.items():
        lines.append(f"  {shape} {bits} bits {name:14}{peak / 2**20:10.0f}")
    lines += [f"left out: {name}: {reason}" for name, reason in figures.missing.items()]
    return "\n".join(lines) + "\n"


def _in_order(figures: Figures) -> list[tuple[Cell, dict[str, list[float]]]]:
    """Return the figures by shape, bits and context, the prompt's first."""
    names = list(SHAPES)

    def place(cell: Cell) -> tuple[int, int, int, bool, int]:
        shape, bits, what, context, batch = cell
        return names.index(shape), -int(bits), context, what != "prefill", batch

    return sorted(figures.rates.items(), key=lambda item: place(item[0]))


def _report(plan: Plan, figures: Figures) -> dict[str, Any]:
    rows = [
        {
            "shape": cell[0],
            "bits": cell[1],
            "what": cell[2],
            "context": cell[3],
            "batch": cell[4],
            "bound": _median(figures.limits[cell]),
            "bounds": figures.limits[cell],
            "tokens_per_s": dict(by_engine),
        }
        for cell, by_engine in _in_order(figures)
    ]
    return {
        "date": time.strftime("%Y-%m-%d"),
        "threads": plan.threads,
        "engines": figures.engines,
        "left_out": figures.missing,
        "rows": rows,
        "peak_bytes": {" ".join(key): peak for key, peak in figures.peaks.items()},
    }


def _median(rates: list[float]) -> float:
    return statistics.median(rates) if rates else 0.0


def _spread(rates: list[float]) -> str:
    return f"{_median(rates):.1f} [{min(rates):.1f} .. {max(rates):.1f}]" if rates else "-"


if __name__ == "__main__":
    raise SystemExit(main())
