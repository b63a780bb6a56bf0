"""The findings as the page docs/models.md."""

from collections.abc import Sequence
from pathlib import Path

import transformers

from benchmarks.models.survey import Finding

NO_TEXT_MODEL = "refused: no model for text alone is registered for it"

HEAD = """# Models

Written by `python -m benchmarks.models --write docs/models.md` ({versions}).

Every causal-LM class that the installed transformers knows gets a tiny model with random weights. A class is
**exact** when all greedy answers are those of transformers' `generate` in float32, tokens and
log-probabilities: prompts of 5 to 70 tokens computed together, 24 tokens a step, past windows and chunks of
24 tokens; a known prefix continued inside a block, or at the end of an answer where layers keep a state; two
branches of a fork; and the same after a restart, from disk. Everything else is refused when it is loaded,
with the reason given below; nothing runs that is known to be wrong.

{counts}

## How a model runs

- **attention**: transformers lets the attention be replaced. Many sequences are computed in one packed pass.
- **latent**: as above, for layers of latent attention: one latent and one rope key per token are kept, and
  queries are projected to them instead of expanding keys and values for all heads.
- **recurrent** layers (gated delta net, Mamba, short convolutions) are called sequence by sequence inside
  such a pass, with the state that each has; everything else of the model computes all tokens together. Native
  kernels compute what accumulates, token by token; without them transformers' own functions do.
- **cache**: the model attends by itself, to keys and values that its cache gathers from blocks; one pass per
  sequence, and every layer keeps all tokens, and may keep the last inputs of convolutions.

Which one it is, what each layer keeps and what it sees is found out when a model is loaded, by a pass of two
tokens at the end of its context and by comparing its logits on two short texts with those it computes without
kvchat. Layers that read the keys and values of another layer (Gemma 3n, Gemma 4) keep nothing and are counted
as borrowed.

A conversation ends at the model's `max_position_embeddings`. With a `longrope` embedding it ends at
`original_max_position_embeddings`: there the embedding changes, and all keys cached before would be wrong.
"""


def page(findings: Sequence[Finding], versions: str) -> str:
    """Return the page as Markdown."""
    exact = [finding for finding in findings if finding.outcome == "exact"]
    rest = {
        outcome: [finding for finding in findings if finding.outcome == outcome]
        for outcome in ("refused", "not built", "wrong")
    }
    counts = f"{len(exact)} configs of {_num_classes(exact)} classes are exact; "
    counts += ", ".join(f"{len(rows)} {outcome}" for outcome, rows in rest.items()) + "."
    parts = [HEAD.format(versions=versions, counts=counts)]
    parts.append(_table("Exact", ("class", "route", "layers"), [(f.name, f.route, f.groups) for f in exact]))
    titles = {"refused": "Refused", "not built": "No tiny model could be made", "wrong": "Wrong"}
    for outcome, rows in rest.items():
        if rows:
            parts.append(_table(titles[outcome], ("class", "reason"), [(f.name, f.reason) for f in rows]))
    parts.append(latent_section(findings))
    return "\n".join(parts)


def latent_section(findings: Sequence[Finding]) -> str:
    """Return what became of each of transformers' model files with latent attention (`expand_kv`)."""
    rows = []
    for name in _latent_modules():
        found = [finding for finding in findings if _module_of(finding.name) == name]
        cells = [(f.name, f"exact ({f.route})" if f.outcome == "exact" else f.outcome) for f in found]
        rows += [(name, *cell) for cell in cells] or [(name, "", NO_TEXT_MODEL)]
    text = "Every file of the installed transformers whose attention has an `expand_kv`:"
    head, table = _table("Latent attention", ("file", "class", "outcome"), rows).split("\n\n", 1)
    return f"{head}\n\n{text}\n\n{table}"


def _latent_modules() -> list[str]:
    models = Path(transformers.__file__).parent / "models"
    files = models.glob("*/modeling_*.py")
    return sorted(path.parent.name for path in files if "def expand_kv" in path.read_text(encoding="utf-8"))


def _module_of(name: str) -> str:
    """Return the folder of a class's model file; `name` may go on with a variant."""
    found = getattr(transformers, name.partition(" (")[0], None)
    return "" if found is None else str(found.__module__).split(".")[-2]


def _num_classes(findings: Sequence[Finding]) -> int:
    return len({finding.name.partition(" (")[0] for finding in findings})


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"## {title}", "", _row(head), _row(["---"] * len(head))]
    return "\n".join(lines + [_row(row) for row in rows]) + "\n"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
