"""Questions with one right answer about long contexts, and how they were answered: values."""

from dataclasses import dataclass

from kvchat.engine.api.loss import Loss


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Tokens behind a context, and those of the only right answer, its end included."""

    token_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A context, and questions that are asked behind it one at a time.

    Args:
        kind: what is asked, such as recall.
        token_ids: of the context.
        predicted: positions in the context, ascending, at which the next token is predicted too.
        prompt_ends: tokens of the context before each answer in it, ascending; empty: before each run of
            predicted tokens.
    """

    kind: str
    token_ids: tuple[int, ...]
    predicted: tuple[int, ...]
    questions: tuple[Question, ...]
    prompt_ends: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatMarks:
    """How one format did.

    Args:
        right: of each item, in order, which of its questions were answered right: every token of the answer
            is the likeliest one after those before it, so greedy decoding gives exactly this answer.
        answers: predictions of the answers' tokens, beside the exact cache's.
        texts: the same of the contexts' predicted tokens.
        token_bytes: of one token, windows left out; over a view in the mean of the texts.
    """

    cache_format: str
    right: tuple[tuple[bool, ...], ...]
    answers: Loss
    texts: Loss
    token_bytes: float
