"""Cold start of `kvchat ask` on 360 M random weights: where the time to its first word goes, and peak memory.

Each round starts new processes: the interpreter alone, with kvchat's modules, and whole questions. Times are
the processor's, all threads together: neighbours count little. What the page cache keeps stays there, as for
anybody who asks twice a day; so does what is known of the model's checks (see `kept_checks`), but where a row
says that it is not. Imports are those of a question's own process as `-X importtime` counts them, in a run of
its own: counting slows them down, so their share is of that run. On a GPU the first word is measured with
nothing compiled and once it is, by the clock; where there is none, nothing is compiled.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from benchmarks.bytecode import kept_bytecode
from benchmarks.compile_cost import compile_rows, has_gpu, nothing_compiled
from benchmarks.table import Row
from kvchat.engine.forward.self_check_cache import FILE_NAME as CHECKS_FILE
from kvchat.engine.models.locate import locate_model

ROUNDS = 5
KV_BYTES = 256 * 2**20
MIB = 2**20
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "special_tokens_map.json",
)
MINIMAL = """
import sys
from transformers import AutoModelForCausalLM, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
ids = tokenizer.apply_chat_template(
    [{"role": "user", "content": "What is a KV cache?"}], add_generation_prompt=True, return_tensors="pt",
    return_dict=False,
)
print(tokenizer.decode(model.generate(ids, max_new_tokens=8, min_new_tokens=8, do_sample=False)[0]))
"""
IMPORTED = re.compile(r"import time:\s+(\d+) \|\s+(\d+) \| ( *)(\S+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One question in a process of its own.

    Args:
        event_s: processor's seconds up to the first event of each kind.
        total_s: up to its end.
        peak_bytes: most memory that was resident, mapped files included.
    """

    event_s: Mapping[str, float]
    total_s: float
    peak_bytes: int


def measure(*, quick: bool = False) -> list[Row]:
    num_rounds = 2 if quick else ROUNDS
    with tempfile.TemporaryDirectory() as directory:
        model_dir = _model(Path(directory) / "model")
        home = Path(directory) / "home"
        _ask(model_dir, home)  # digests of the weights are kept from now on, as after any first question
        bare = _elapsed(["-c", ""], home, num_rounds)
        helped = _elapsed(["-m", "kvchat", "--help"], home, num_rounds)
        asked = [_ask(model_dir, home) for _ in range(num_rounds)]
        new = [_ask_unchecked(model_dir, home) for _ in range(num_rounds)]
        plain = _elapsed(["-c", MINIMAL, str(model_dir)], home, num_rounds)
        tiny = [_ask(Path(locate_model("starter").path), home) for _ in range(num_rounds)]
        imports, counted_s = _imports(model_dir, home)
        compiling = (
            compile_rows(lambda variables: _first_word_s(model_dir, variables), home, num_rounds)
            if has_gpu()
            else nothing_compiled()
        )
        weight_bytes = sum(file.stat().st_size for file in model_dir.glob("*.safetensors"))
    first_s = [one.event_s["text"] for one in asked]
    bound = (weight_bytes + KV_BYTES) * 1.15 + min(one.peak_bytes for one in tiny)
    return [
        Row.of("python alone", "s", bare),
        Row.of("kvchat --help", "s", helped),
        Row.of("starter: first word of an answer", "s", [one.event_s["text"] for one in tiny]),
        Row.of("360 M: first word of an answer", "s", first_s),
        Row.of("  of it until the prompt is looked at", "s", [one.event_s["prefill"] for one in asked]),
        *(Row.of(f"  imports, {name}", "s", [seconds]) for name, seconds in imports.items()),
        Row.of("  imports in all, of the counted run", "x", [sum(imports.values()) / counted_s]),
        Row.of("360 M: whole command", "s", [one.total_s for one in asked]),
        Row.of("  where its checks are not known", "s", [one.total_s for one in new]),
        Row.of("360 M: a minimal transformers script", "s", plain, "same model, as many tokens"),
        Row.of(
            "  the whole command, of that",
            "x",
            [one.total_s / script_s for one, script_s in zip(asked, plain, strict=True)],
        ),
        Row.of(
            "  and where its checks are not known",
            "x",
            [one.total_s / script_s for one, script_s in zip(new, plain, strict=True)],
        ),
        Row.of("360 M: peak memory", "MiB", [one.peak_bytes / MIB for one in asked]),
        Row.of("starter: peak memory", "MiB", [one.peak_bytes / MIB for one in tiny]),
        Row.of(
            "360 M: of weights + KV + 15 % + starter",
            "x",
            [one.peak_bytes / bound for one in asked],
            f"weights {weight_bytes / MIB:,.0f}, KV {KV_BYTES / MIB:,.0f} MiB",
        ),
        *compiling,
    ]


def _model(model_dir: Path) -> Path:
    """Write random weights with the starter model's tokenizer.

    In a process of its own: what this one ever held would count as held by every question it starts.
    """
    write = "import sys; from pathlib import Path; from benchmarks.speculation import write_shape; "
    command = [sys.executable, "-c", write + "write_shape(Path(sys.argv[1]))", str(model_dir)]
    subprocess.run(command, cwd=Path(__file__).parent.parent, check=True)
    starter = Path(locate_model("starter").path)
    for name in TOKENIZER_FILES:
        if (starter / name).is_file():
            shutil.copy(starter / name, model_dir / name)
    return model_dir


def _command(model_dir: Path) -> list[str]:
    options = ["--ndjson", "--no-attach", "--max-tokens", "8", "--kv-device-bytes", str(KV_BYTES)]
    return [sys.executable, "-m", "kvchat", "ask", "-m", str(model_dir), *options, "What is a KV cache?"]


def _environment(home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KVCHAT_")}
    return kept | {"KVCHAT_HOME": str(home)} | kept_bytecode(home)


def _ask(model_dir: Path, home: Path) -> Asked:
    event_s: dict[str, float] = {}
    with subprocess.Popen(
        _command(model_dir), env=_environment(home), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as child:
        assert child.stdout is not None
        for line in child.stdout:
            event_s.setdefault(json.loads(line)["event"], _spent(child.pid))
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0, f"exit code {child.returncode}"
    event_s.setdefault("text", event_s["done"])  # random weights may say nothing that is text
    total_s = usage.ru_utime + usage.ru_stime
    return Asked(event_s=event_s, total_s=total_s, peak_bytes=usage.ru_maxrss * 1024)


def _ask_unchecked(model_dir: Path, home: Path) -> Asked:
    """Ask where nobody knows which checks the model passes; the digests of its weights are known."""
    (home / "cache" / CHECKS_FILE).unlink()
    return _ask(model_dir, home)


def _first_word_s(model_dir: Path, variables: Mapping[str, str]) -> float:
    """Return the seconds by the clock until a new process has said a word, or ended where it says none."""
    start_s = perf_counter()
    with subprocess.Popen(
        _command(model_dir),
        env=_environment(Path(variables["KVCHAT_HOME"])) | dict(variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as child:
        assert child.stdout is not None
        first_s = next(perf_counter() - start_s for line in child.stdout if _is_word(line))
        child.communicate()
    assert child.returncode == 0, f"exit code {child.returncode}"
    return first_s


def _is_word(line: bytes) -> bool:
    return json.loads(line)["event"] in ("text", "done")


def _spent(pid: int) -> float:
    """Return the processor time that a running process has used, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _imports(model_dir: Path, home: Path) -> tuple[dict[str, float], float]:
    """Return the seconds that importing took, by package, the longest first; and those of the whole run."""
    command = [sys.executable, "-X", "importtime", *_command(model_dir)[1:]]
    start_s = perf_counter()
    ran = subprocess.run(command, env=_environment(home), capture_output=True, text=True, check=True)
    counted_s = perf_counter() - start_s
    seconds: dict[str, float] = {}
    for own_us, _, _, name in IMPORTED.findall(ran.stderr):
        package = name.partition(".")[0]
        seconds[package] = seconds.get(package, 0.0) + int(own_us) / 1e6
    return _longest(seconds), counted_s


def _longest(seconds: Mapping[str, float], num_shown: int = 8) -> dict[str, float]:
    ranked = sorted(seconds.items(), key=lambda pair: -pair[1])
    return dict(ranked[:num_shown]) | {"all others": sum(value for _, value in ranked[num_shown:])}


def _elapsed(arguments: Sequence[str], home: Path, num_rounds: int) -> list[float]:
    """Return the processor's seconds of new interpreters, behind one that compiles what they import."""
    return [_elapsed_once([sys.executable, *arguments], home) for _ in range(num_rounds + 1)][1:]


def _elapsed_once(command: Sequence[str], home: Path) -> float:
    child = subprocess.Popen(command, env=_environment(home), stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0
    return usage.ru_utime + usage.ru_stime
