"""What a shadow loses on the built-in questions: the starter model's full layers are forced to have one.

A context is computed exactly, once. Each question is then asked behind it twice, over the exact cache and
over the shadow, so every pair differs in the cache alone. Layers with a window keep theirs.
"""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.table import Row
from kvchat.engine.api.exams import FormatMarks, Item, Question
from kvchat.engine.api.view import parse_view
from kvchat.engine.attention.call import AttentionCall
from kvchat.engine.loss import TokenLosses, joined, token_losses
from kvchat.engine.models.hook import IMPLEMENTATION, attach, set_implementation
from kvchat.engine.models.load import load_model
from kvchat.engine.shadow.layer import ShadowLayer
from kvchat.engine.shadow.pages import Budget
from kvchat.engine.shadow.rotary import Rotary
from kvchat.engine.shadow.settings import ShadowSettings, settings_for
from kvchat.engine.shadow.stock import Budgets
from kvchat.gauge.paired import paired_score
from kvchat.gauge.suite import Suite, SuiteSize

STARTER = Path(__file__).parent.parent / "kvchat" / "starter" / "model"
AT_MOST_LOST = 1.0
REPORT_EVERY = 5
"""Texts."""
FORMAT = "shadow:25%:forced"
"""As in `--cache-format`."""


@dataclass(slots=True)
class _Past:
    """Keys and values of a layer, and its shadow where it has one."""

    keys: Tensor
    values: Tensor
    shadow: ShadowLayer | None = None


class _Layers:
    """Stands behind every attention module; keeps what it sees of a context, not what is asked behind it."""

    def __init__(self) -> None:
        self.past: dict[int, _Past] = {}
        self.sees_shadows = False
        self.num_fetched = self.num_wanted = 0

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        scale = query.shape[2] ** -0.5 if call.scaling is None else call.scaling
        past = self.past.get(layer)
        if past is None:
            self.past[layer] = _Past(key, value)
            return _dense(query, key, value, scale, call.window)
        if self.sees_shadows and past.shadow is not None:
            branch = past.shadow.fork()
            out, steps = branch.attend(query, key, value, scale)
            branch.release()
            self.num_fetched += sum(step.num_fetched for step in steps)
            self.num_wanted += sum(step.num_wanted for step in steps)
            return out
        keys, values = torch.cat((past.keys, key)), torch.cat((past.values, value))
        return _dense(query, keys, values, scale, call.window)


def _dense(query: Tensor, keys: Tensor, values: Tensor, scale: float, window: int | None) -> Tensor:
    at = torch.arange(len(keys) - len(query), len(keys))[:, None]
    other = torch.arange(len(keys))
    visible = (other <= at) & (other > at - (window or len(keys)))
    sides = [side.transpose(0, 1) for side in (query, keys, values)]
    out = functional.scaled_dot_product_attention(
        sides[0], sides[1], sides[2], attn_mask=visible, scale=scale, enable_gqa=True
    )
    return out.transpose(0, 1)


class Reader:
    """The starter model over exact pasts and shadows of them."""

    def __init__(self, settings: ShadowSettings) -> None:
        self.settings = settings
        self._module = load_model(STARTER, "float32", torch.device("cpu")).module
        self.layers = _Layers()
        attach(self._module, self.layers)
        set_implementation(self._module, IMPLEMENTATION)
        self._full = [
            number for number, kind in enumerate(self._module.config.layer_types) if kind == "full_attention"
        ]
        embedding = self._module.model.rotary_emb
        self._rotary = Rotary(lambda positions: embedding(torch.empty(1), positions))
        self.num_on_basis = self.num_shadows = 0

    def read(self, item: Item) -> None:
        """Compute a context exactly, and a shadow of each full layer."""
        self.layers.past = {}
        self._logits(item.token_ids, 0)
        for number in self._full:
            past = self.layers.past[number]
            budgets = Budgets(device=Budget("device"), host=Budget("host"))
            past.shadow = ShadowLayer.of_prompt(
                self.settings, self._rotary, past.keys, past.values, budgets, kind="full"
            )
            self.num_shadows += 1
            self.num_on_basis += past.shadow.segments[0].directions is not None

    def answer(self, item: Item, question: Question, *, sees_shadows: bool) -> Tensor:
        """Return the logits before the tokens of an answer, over the exact cache or the shadow."""
        self.layers.sees_shadows = sees_shadows
        fed = question.token_ids + question.answer_ids[:-1]
        return self._logits(fed, len(item.token_ids))[-len(question.answer_ids) :]

    def _logits(self, token_ids: Sequence[int], start: int) -> Tensor:
        positions = torch.arange(start, start + len(token_ids))[None]
        ids = torch.tensor(token_ids)[None]
        logits: Tensor = self._module(input_ids=ids, position_ids=positions, use_cache=False).logits[0]
        return logits


def measure_quality(
    *, num_conversations: int = 100, num_documents: int = 40, length: int = 2000
) -> list[Row]:
    """Ask all questions on both caches, and return what is lost with its interval."""
    size = SuiteSize(num_conversations=num_conversations, num_documents=num_documents, length=length)
    return ask_all(Suite(STARTER).items(size), Reader(settings_for(parse_view(FORMAT), length)))


@torch.inference_mode()
def ask_all(items: Iterable[Item], reader: Reader) -> list[Row]:
    losses: dict[bool, list[TokenLosses]] = {False: [], True: []}
    right: dict[bool, list[tuple[bool, ...]]] = {False: [], True: []}
    asked_items = []
    for item in items:
        asked_items.append(item)
        reader.read(item)
        asked = [_ask(reader, item, question) for question in item.questions]
        for place, sees_shadows in enumerate((False, True)):
            losses[sees_shadows] += [pair[place] for pair in asked]
            right[sees_shadows].append(tuple(bool(pair[place].approximate_hits.all()) for pair in asked))
        if len(asked_items) % REPORT_EVERY == 0:
            _report(right[False], right[True])
    exact, shadow = (
        FormatMarks(
            cache_format="shadow" if sees_shadows else "exact",
            right=tuple(right[sees_shadows]),
            answers=joined(losses[sees_shadows]).loss(),
            texts=joined(losses[sees_shadows]).loss(),
            token_bytes=0.0,
        )
        for sees_shadows in (False, True)
    )
    return _rows(asked_items, exact, shadow, reader)


def _report(exact: Sequence[tuple[bool, ...]], shadow: Sequence[tuple[bool, ...]]) -> None:
    """Say how far it has come, for one who waits."""
    num_questions = sum(map(len, exact))
    shares = [100 * sum(map(sum, marks)) / num_questions for marks in (exact, shadow)]
    words = (
        f"{num_questions} questions about {len(exact)} texts: exact {shares[0]:.1f} %, shadow {shares[1]:.1f}"
    )
    print(words, file=sys.stderr, flush=True)


def _ask(reader: Reader, item: Item, question: Question) -> tuple[TokenLosses, TokenLosses]:
    answer = torch.tensor(question.answer_ids)
    exact = reader.answer(item, question, sees_shadows=False)
    shadow = reader.answer(item, question, sees_shadows=True)
    return token_losses(exact, exact, answer), token_losses(exact, shadow, answer)


def _rows(items: Sequence[Item], exact: FormatMarks, shadow: FormatMarks, reader: Reader) -> list[Row]:
    rows = []
    for kind in ("recall", "needle", None):
        score = paired_score(items, exact, shadow, kind)
        what = f"{kind or 'all'}, {score.num_questions} questions about {score.num_contexts} texts"
        rows += [
            Row.of(f"{what}: exact", "%", [100 * score.exact]),
            Row.of("  shadow", "%", [100 * score.approximate]),
            Row(
                name="  lost",
                unit="points",
                median=score.lost,
                low=score.least_lost,
                high=score.most_lost,
                note=f"at most {AT_MOST_LOST:g} [95 %] {score.num_worse} worse, {score.num_better} better",
            ),
        ]
    layers = reader.layers
    return [
        *rows,
        Row.of("share of keys on a basis", "%", [100 * reader.num_on_basis / reader.num_shadows]),
        Row.of("chosen chunks that came from the host", "%", [100 * layers.num_fetched / layers.num_wanted]),
        Row.of("tokens that a step chooses", "", [reader.settings.budget]),
    ]
