"""The built-in suite: conversations and documents that the starter model was never trained on.

Written by the generator that wrote its training texts, with values that were kept out of it. Facts are told
first, or codes are hidden in a document, then asked for one at a time, each on its own behind the same text.
"""

import random
from collections.abc import Iterable, Iterator
from pathlib import Path

from tokenizers import Tokenizer

from kvchat.engine.api.recall import Item, Question
from kvchat.errors import UsageError
from kvchat.platform.values import dataclass
from kvchat.session.template.tokenizer import read_tokenizer
from kvchat.starter.conversation import Message
from kvchat.starter.probes import Interview, Prober
from kvchat.starter.split import stable_hash
from kvchat.starter.tokenizer import END_ID, ROLE_IDS, letter_pieces, opened
from kvchat.starter.words import Lexicon

RECALL, NEEDLE = "recall", "needle"
DEPTHS = (0.1, 0.5, 0.9)
_TEXT_LEN = 256
"""The next token is predicted for answers in so many of a context's last tokens."""


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


class Suite:
    """Writes items for the starter model.

    Args:
        model_dir: where its tokenizer is.

    Raises:
        UsageError: its tokenizer is none in which the questions can be written.
        ModelUnreadable: its tokenizer is damaged.
    """

    def __init__(self, model_dir: Path) -> None:
        self._tokenizer = _tokenizer(model_dir)
        self._prober = Prober(
            Lexicon(pieces=letter_pieces(self._tokenizer)), lambda text: len(self._ids(text))
        )

    def items(self, size: SuiteSize) -> Iterator[Item]:
        """Yield the same items for the same size, in every process."""
        rng = random.Random(stable_hash(f"gauge:{RECALL}"))
        for _ in range(size.num_conversations):
            yield self._item(RECALL, self._prober.interview(rng, size.length, size.num_facts))
        rng = random.Random(stable_hash(f"gauge:{NEEDLE}"))
        for _ in range(size.num_documents):
            yield self._item(NEEDLE, self._prober.needles(rng, size.length, DEPTHS))

    def _item(self, kind: str, interview: Interview) -> Item:
        ids: list[int] = []
        answers: list[int] = []
        prompt_ends: list[int] = []
        for message in interview.context:
            written = self._message(message)
            if message.role == "assistant":
                prompt_ends.append(len(ids) + 1)
                answers += range(len(ids) + 1, len(ids) + len(written))
            ids += written
        last = [position for position in answers if position >= len(ids) - _TEXT_LEN] or answers[-1:]
        questions = tuple(
            Question(
                token_ids=(*self._message(question), ROLE_IDS["assistant"]),
                answer_ids=(*self._ids(answer), END_ID),
            )
            for question, answer in interview.questions
        )
        return Item(
            kind=kind,
            token_ids=tuple(ids),
            predicted=tuple(last),
            questions=questions,
            prompt_ends=tuple(prompt_ends),
        )

    def _message(self, message: Message) -> list[int]:
        return [ROLE_IDS[message.role], *self._ids(opened(message.role, message.text)), END_ID]

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text).ids
        return ids


def _tokenizer(model_dir: Path) -> Tokenizer:
    """Open the tokenizer of a model that was trained on conversations as they are written here."""
    file = model_dir / "tokenizer.json"
    wanted = {f"<|{role}|>": number for role, number in ROLE_IDS.items()} | {"<|end|>": END_ID}
    found = read_tokenizer(file)[0] if file.is_file() else None
    if found is None or any(found.token_to_id(piece) != number for piece, number in wanted.items()):
        raise UsageError(
            f"the built-in questions are written for the starter model, and the tokenizer of {model_dir} is "
            "another, or missing; leave -m out, or measure on a conversation: kvchat cache gauge SESSION"
        )
    return found


def num_questions(items: Iterable[Item]) -> int:
    """Return how many questions some items ask."""
    return sum(len(item.questions) for item in items)
