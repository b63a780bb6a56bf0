"""Recall suite: questions about conversations and documents that the starter model was not trained on.

The texts are a data file beside the starter's weights (`RECALL_FILE`): facts are told first, or codes are
hidden in a document, then asked for one at a time, each on its own behind the same text.
"""

import gzip
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

import kvchat.starter
from kvchat.engine.api.recall import Item, Question
from kvchat.errors import UsageError
from kvchat.session.template.tokenizer import read_tokenizer

RECALL, NEEDLE = "recall", "needle"
CONTEXT_LEN = 2000
"""About how many tokens a context has."""
RECALL_FILE = Path(kvchat.starter.__file__).parent / "recall_suite.json.gz"
END_ID = 1
ROLE_IDS = {"system": 2, "user": 3, "assistant": 4}
"""Token ids of the starter's template."""
_TEXT_LEN = 256
"""The next token is predicted for answers in so many of a context's last tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallTexts:
    """One item as text.

    Args:
        kind: RECALL or NEEDLE.
        context: messages as (role, text).
        questions: what is asked behind the context, each on its own, with its only right answer.
    """

    kind: str
    context: tuple[tuple[str, str], ...]
    questions: tuple[tuple[str, str], ...]


class SuiteEncoder:
    """Turns texts into items for a model with the starter's tokenizer.

    Args:
        model_dir: where the tokenizer is.

    Raises:
        UsageError: its tokenizer is none in which the questions can be written.
        ModelUnreadable: its tokenizer is damaged.
    """

    def __init__(self, model_dir: Path) -> None:
        self.tokenizer = _tokenizer(model_dir)

    def item(self, texts: RecallTexts) -> Item:
        ids: list[int] = []
        answers: list[int] = []
        prompt_ends: list[int] = []
        for role, text in texts.context:
            written = self._message(role, text)
            if role == "assistant":
                prompt_ends.append(len(ids) + 1)
                answers += range(len(ids) + 1, len(ids) + len(written))
            ids += written
        last = [position for position in answers if position >= len(ids) - _TEXT_LEN] or answers[-1:]
        questions = tuple(
            Question(
                token_ids=(*self._message("user", question), ROLE_IDS["assistant"]),
                answer_ids=(*self.ids(answer), END_ID),
            )
            for question, answer in texts.questions
        )
        return Item(
            kind=texts.kind,
            token_ids=tuple(ids),
            predicted=tuple(last),
            questions=questions,
            prompt_ends=tuple(prompt_ends),
        )

    def ids(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text).ids
        return ids

    def _message(self, role: str, text: str) -> list[int]:
        # The template puts a space before a user's text: its first word has the same tokens as elsewhere.
        return [ROLE_IDS[role], *self.ids(f" {text}" if role == "user" else text), END_ID]


def suite_items(
    model_dir: Path, *, num_recall: int | None = None, num_needle: int | None = None
) -> list[Item]:
    """Return the first built-in questions of each kind as items for one model, conversations first; None: all
    of them. Raises as `SuiteEncoder` does.
    """
    encoder, texts = SuiteEncoder(model_dir), read_texts(RECALL_FILE)
    wanted = [
        *[one for one in texts if one.kind == RECALL][:num_recall],
        *[one for one in texts if one.kind == NEEDLE][:num_needle],
    ]
    return [encoder.item(one) for one in wanted]


def read_texts(file: Path) -> list[RecallTexts]:
    return [
        RecallTexts(
            kind=one["kind"],
            context=tuple((role, text) for role, text in one["context"]),
            questions=tuple((question, answer) for question, answer in one["questions"]),
        )
        for one in json.loads(gzip.decompress(file.read_bytes()))
    ]


def num_questions(items: Iterable[Item]) -> int:
    """Return how many questions some items ask."""
    return sum(len(item.questions) for item in items)


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
