"""Generator of the recall suite: `python -m tools.starter.recall_suite` writes the file that kvchat ships.

Written by the generator that wrote the starter's training texts, with values that were kept out of them.
"""

import gzip
import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from kvchat.engine.api.recall import Item
from kvchat.engine.quality.recall_suite import NEEDLE, RECALL, RECALL_FILE, RecallTexts, SuiteEncoder
from tools.starter import MODEL_DIRECTORY
from tools.starter.probes import Interview, Prober
from tools.starter.split import stable_hash
from tools.starter.tokenizer import letter_pieces
from tools.starter.words import Lexicon

DEPTHS = (0.1, 0.5, 0.9)


def write_texts(texts: Iterable[RecallTexts], file: Path) -> None:
    """Write texts as `read_texts` reads them; the same texts give the same bytes."""
    plain = [
        {"kind": one.kind, "context": list(one.context), "questions": list(one.questions)} for one in texts
    ]
    file.write_bytes(gzip.compress(json.dumps(plain, separators=(",", ":")).encode(), mtime=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteSize:
    """How much is asked.

    Args:
        num_conversations: with `num_facts` told and asked for in each.
        num_documents: with a code at each of three depths.
        length: of each context, in tokens.
    """

    num_conversations: int = 100
    num_facts: int = 5
    num_documents: int = 40
    length: int = 2000

    @property
    def num_questions(self) -> int:
        return self.num_conversations * self.num_facts + self.num_documents * len(DEPTHS)


class SuiteGenerator:
    """Writes items of any size for the starter model; the same for the same size, in every process."""

    def __init__(self, model_dir: Path) -> None:
        self._encoder = SuiteEncoder(model_dir)
        self._prober = Prober(
            Lexicon(pieces=letter_pieces(self._encoder.tokenizer)), lambda text: len(self._encoder.ids(text))
        )

    def texts(self, size: SuiteSize) -> Iterator[RecallTexts]:
        rng = random.Random(stable_hash(f"gauge:{RECALL}"))
        for _ in range(size.num_conversations):
            yield _texts(RECALL, self._prober.interview(rng, size.length, size.num_facts))
        rng = random.Random(stable_hash(f"gauge:{NEEDLE}"))
        for _ in range(size.num_documents):
            yield _texts(NEEDLE, self._prober.needles(rng, size.length, DEPTHS))

    def items(self, size: SuiteSize) -> Iterator[Item]:
        return (self._encoder.item(texts) for texts in self.texts(size))


def _texts(kind: str, interview: Interview) -> RecallTexts:
    return RecallTexts(
        kind=kind,
        context=tuple((message.role, message.text) for message in interview.context),
        questions=tuple((question.text, answer) for question, answer in interview.questions),
    )


def main() -> None:
    write_texts(SuiteGenerator(MODEL_DIRECTORY).texts(SuiteSize()), RECALL_FILE)
    print(f"{RECALL_FILE}: {RECALL_FILE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
