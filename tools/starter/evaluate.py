"""Measures the starter model: how often greedy decoding gives exactly the right answer.

    python -m tools.starter.evaluate [--model DIR] [--quick] [--json] [--only WORD] [--failures N]

The answer is right if every token of it, the end included, is the most likely one after the tokens before it;
that is the same as greedy decoding emitting exactly this answer.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from tools.starter import MODEL_DIRECTORY
from tools.starter.categories import FULL, QUICK, categories
from tools.starter.conversation import Message
from tools.starter.probes import Probe, Prober
from tools.starter.split import stable_hash
from tools.starter.tokenizer import END_ID, ROLE_IDS, letter_pieces, opened
from tools.starter.words import Lexicon


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The result of one category."""

    name: str
    num_exact: int
    num_probes: int

    @property
    def percent(self) -> int:
        """Share of exact answers, rounded."""
        return round(100 * self.num_exact / self.num_probes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Miss:
    """A probe that was not answered exactly."""

    category: str
    question: str
    expected: str
    given: str


class Evaluator:
    """A model with its tokenizer, asked probe by probe."""

    def __init__(self, directory: Path) -> None:
        self.tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self.model = AutoModelForCausalLM.from_pretrained(directory).eval()

    def prober(self) -> Prober:
        """Return a maker of probes with this tokenizer's words."""
        lexicon = Lexicon(pieces=letter_pieces(self.tokenizer))
        return Prober(lexicon, lambda text: len(self.tokenizer.encode(text).ids))

    def prompt(self, messages: Iterable[Message]) -> list[int]:
        """Return the token ids of `messages` and of the generation prompt."""
        ids: list[int] = []
        for message in messages:
            written = self.tokenizer.encode(opened(message.role, message.text)).ids
            ids += [ROLE_IDS[message.role], *written, END_ID]
        return [*ids, ROLE_IDS["assistant"]]

    @torch.inference_mode()
    def most_likely(self, probe: Probe) -> tuple[list[int], list[int]]:
        """Return the expected ids and the most likely id at the place of each."""
        prompt = self.prompt(probe.context)
        expected = [*self.tokenizer.encode(probe.answer).ids, END_ID]
        ids = torch.tensor([prompt + expected[:-1]])
        logits = self.model(input_ids=ids, use_cache=False, logits_to_keep=len(expected)).logits
        return expected, logits[0].argmax(-1).tolist()

    def is_exact(self, probe: Probe) -> bool:
        """Say whether greedy decoding gives exactly the answer."""
        expected, given = self.most_likely(probe)
        return expected == given

    @torch.inference_mode()
    def reply(self, messages: Iterable[Message], max_tokens: int = 300) -> str:
        """Return the greedy answer to a conversation."""
        prompt = torch.tensor([self.prompt(messages)])
        ids = self.model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=max_tokens)
        return self.tokenizer.decode(ids[0, prompt.shape[1] :].tolist())

    def evaluate(self, quick: bool, only: str = "") -> tuple[list[Row], list[Miss]]:
        """Run every category whose name contains `only`."""
        rows: list[Row] = []
        misses: list[Miss] = []
        for category in categories(self.prober(), QUICK if quick else FULL):
            if only not in category.name:
                continue
            results = []
            for probe in category.probes(random.Random(stable_hash(category.name))):
                expected, given = self.most_likely(probe)
                results.append(expected == given)
                if expected != given:
                    text = self.tokenizer.decode(given, skip_special_tokens=False)
                    misses.append(
                        Miss(
                            category=category.name,
                            question=probe.context[-1].text,
                            expected=probe.answer,
                            given=text,
                        )
                    )
            rows.append(Row(name=category.name, num_exact=sum(results), num_probes=len(results)))
        return rows, misses


def markdown(rows: Iterable[Row]) -> str:
    """Return the rows as a Markdown table."""
    lines = ["| category | exact | n |", "|---|---|---|"]
    lines += [f"| {row.name} | {row.percent} % | {row.num_probes} |" for row in rows]
    return "\n".join(lines)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Measure the starter model of kvchat.")
    parser.add_argument("--model", type=Path, default=MODEL_DIRECTORY)
    parser.add_argument("--quick", action="store_true", help="fewer probes, nothing longer than 1024 tokens")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a Markdown table")
    parser.add_argument("--only", default="", help="only categories whose name contains this")
    parser.add_argument("--failures", type=int, default=0, help="show so many wrong answers on stderr")
    arguments = parser.parse_args()
    rows, misses = Evaluator(arguments.model).evaluate(arguments.quick, arguments.only)
    print(json.dumps([asdict(row) for row in rows], indent=2) if arguments.json else markdown(rows))
    random.Random(0).shuffle(misses)
    for miss in misses[: arguments.failures]:
        print(
            f"[{miss.category}] {miss.question}\n  expected {miss.expected}\n  given    {miss.given}",
            file=sys.stderr,
        )


if __name__ == "__main__":
    main()
