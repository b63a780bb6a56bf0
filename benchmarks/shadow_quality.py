"""What a shadow loses on the built-in questions, alone and beside other formats; the starter's is forced.

Each question is asked behind its context in every format, so each pair differs in the cache alone. Layers
with a window keep theirs. What a shadow takes is measured on an engine: what lies beside the blocks, since
these may lie in host memory. Of other formats all that they hold counts.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.points_plot import Point, points_plot
from benchmarks.table import Row
from kvchat.engine.api.config import EngineConfig
from kvchat.engine.api.recall import FormatMarks, Item
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.engine.api.snapshot import ShadowUsage
from kvchat.engine.engine import Engine
from kvchat.engine.quality.gauge import Gauge
from kvchat.engine.quality.paired_score import PairedScore, paired_score
from kvchat.engine.quality.recall import examine
from tools.starter.recall_suite import SuiteGenerator, SuiteSize

STARTER = Path(__file__).parent.parent / "kvchat" / "starter" / "model"
AT_MOST_LOST = 1.0
REPORT_EVERY = 5
"""Texts."""
FORMAT = "shadow:25%:forced"
"""As in `--cache-format`."""
LENGTH = 4400
"""Tokens of a text: keys that no basis holds are kept in 8 bits from 4,096 on."""
LONGEST = 8000
"""The same, as long as the starter's context takes beside questions and answers."""
BESIDE: Mapping[str, Sequence[str]] = {
    "shadow": ("shadow:5%:forced", "shadow:10%:forced", FORMAT),
    "window": ("window:512", "window:1024"),
    "snapkv": ("snapkv:512", "snapkv:1024"),
    "bits": ("int2", "int4", "int8"),
}
"""What stands in the plot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What a shadow keeps beside the blocks of one text.

    Args:
        token_bytes: of each of its tokens, in all layers.
        seen_tokens: that a step looks at.
        new_share: of the chosen chunks those that the step before had not chosen too.
    """

    token_bytes: float
    seen_tokens: int
    new_share: float


def measure_quality(
    *, num_conversations: int = 50, num_documents: int = 20, length: int = LONGEST
) -> list[Row]:
    """Ask all questions on the exact cache and through a shadow; return what is lost with its interval."""
    size = SuiteSize(
        num_conversations=num_conversations, num_facts=10, num_documents=num_documents, length=length
    )
    items = list(_items(size))
    exact, shadow = _asked(items, (FORMAT,))
    kept = kept_of(items[0], FORMAT)
    return [
        *(row for kind in ("recall", "needle", None) for row in _lost(items, exact, shadow, kind)),
        Row.of("bytes of a token, exact", "", [exact.token_bytes]),
        Row.of("  beside its blocks", "", [kept.token_bytes]),
        Row.of("tokens that a step looks at", "", [kept.seen_tokens]),
        Row.of("chosen chunks that the step before had not", "%", [100 * kept.new_share]),
    ]


def measure_frontier(*, length: int = LENGTH, quick: bool = False) -> tuple[list[Row], str]:
    """Ask fewer questions in several formats; return what each takes and loses, and a plot of that."""
    num_conversations, num_documents = (4, 3) if quick else (16, 6)
    size = SuiteSize(num_conversations=num_conversations, num_documents=num_documents, length=length)
    items = list(_items(size))
    exact, *others = _asked(items, [name for family in BESIDE.values() for name in family])
    marks = {one.cache_format: _with_own_bytes(items[0], one) for one in others}
    scores = {name: paired_score(items, exact, one) for name, one in marks.items()}
    points = {
        family: sorted((_point(marks[name], scores[name]) for name in names), key=lambda point: point.x)
        for family, names in BESIDE.items()
    }
    one = next(iter(scores.values()))
    title = f"{one.num_questions} questions about {one.num_contexts} texts of {length:,} tokens, starter"
    axes = ("bytes of a token on the device, float32", "right answers, %, and 95 % of what the loss may be")
    level = ("exact", exact.token_bytes, 100 * one.exact)
    rows = [Row.of(f"exact, {title}", "%", [100 * one.exact])]
    for name, score in scores.items():
        rows += [Row.of(name, "B/token", [marks[name].token_bytes]), _lost_row(score)]
    return rows, points_plot(title, axes, points, level)


def kept_of(item: Item, cache_format: str) -> Kept:
    """Return what an engine keeps of a text whose first question has been answered."""
    engine = Engine.load(str(STARTER), EngineConfig(device="cpu", dtype="float32", cache_format=cache_format))
    try:
        prompt = [*item.token_ids, *item.questions[0].token_ids]
        engine.generate([prompt], SamplingParams(max_tokens=len(item.questions[0].answer_ids)))
        found: list[ShadowUsage] = [layer.shadow for layer in engine.snapshot().layers if layer.shadow]
    finally:
        engine.close()
    num_wanted = sum(one.wanted_chunks for one in found)
    return Kept(
        token_bytes=sum(one.device_bytes for one in found) / len(prompt),
        seen_tokens=max(one.seen_tokens for one in found),
        new_share=sum(one.fetched_chunks for one in found) / num_wanted,
    )


def _items(size: SuiteSize) -> Iterator[Item]:
    """Yield the questions; of what is said before them nothing is predicted but one token."""
    for item in SuiteGenerator(STARTER).items(size):
        yield replace(item, predicted=(1,), prompt_ends=())


def _asked(items: Sequence[Item], formats: Sequence[str]) -> tuple[FormatMarks, ...]:
    def report(num_done: int) -> None:
        if num_done % REPORT_EVERY == 0:
            print(f"{num_done} of {len(items)} texts", file=sys.stderr, flush=True)

    gauge = Gauge.load(STARTER, EngineConfig(device="cpu", dtype="float32"))
    return examine(gauge, items, formats, report)


def _with_own_bytes(item: Item, marks: FormatMarks) -> FormatMarks:
    """Return the same with what lies beside blocks where these may lie in host memory."""
    if not marks.cache_format.startswith("shadow"):
        return marks
    return replace(marks, token_bytes=kept_of(item, marks.cache_format).token_bytes)


def _point(marks: FormatMarks, score: PairedScore) -> Point:
    exact = 100 * score.exact
    return Point(
        name=marks.cache_format.removesuffix(":forced").rpartition(":")[2],
        x=marks.token_bytes,
        y=100 * score.approximate,
        low=max(0.0, exact - score.most_lost),
        high=min(100.0, exact - score.least_lost),
    )


def _lost(items: Sequence[Item], exact: FormatMarks, shadow: FormatMarks, kind: str | None) -> list[Row]:
    score = paired_score(items, exact, shadow, kind)
    what = f"{kind or 'all'}, {score.num_questions} questions about {score.num_contexts} texts"
    return [
        Row.of(f"{what}: exact", "%", [100 * score.exact]),
        Row.of("  shadow", "%", [100 * score.approximate]),
        _lost_row(score, f"at most {AT_MOST_LOST:g} "),
    ]


def _lost_row(score: PairedScore, note: str = "") -> Row:
    return Row(
        name="  lost",
        unit="points",
        median=score.lost,
        low=score.least_lost,
        high=score.most_lost,
        note=f"{note}[95 %] {score.num_worse} worse, {score.num_better} better",
    )
