"""The findings as the page docs/models.md."""

from collections.abc import Sequence

from benchmarks.models.survey import Finding

HEAD = """# Models

Written by `python -m benchmarks.models --write docs/models.md` ({versions}).

Every causal-LM class that the installed transformers knows gets a tiny model with random weights. A class is
**exact** when all greedy answers are those of transformers' `generate` in float32, tokens and
log-probabilities: prompts of 5 to 70 tokens computed together, 24 tokens a step, past windows and chunks of
24 tokens; a known prefix continued inside a block; two branches of a fork; and the same after a restart, from
disk. Everything else is refused when it is loaded, with the reason given below; nothing runs that is known to
be wrong.

{counts}

## How a model runs

- **attention**: transformers lets the attention be replaced. Many sequences are computed in one packed pass.
- **latent**: as above, for layers of latent attention: one latent and one rope key per token are kept, and
  queries are projected to them instead of expanding keys and values for all heads.
- **cache**: the model attends by itself, to keys and values that its cache gathers from blocks; one pass per
  sequence, and every layer keeps all tokens.

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
    return "\n".join(parts)


def _num_classes(findings: Sequence[Finding]) -> int:
    return len({finding.name.partition(" (")[0] for finding in findings})


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"## {title}", "", _row(head), _row(["---"] * len(head))]
    return "\n".join(lines + [_row(row) for row in rows]) + "\n"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
