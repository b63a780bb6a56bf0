"""How many tokens are computed again for want of a recurrent state, on chats that go back and forth.

Up to a dozen conversations at a time, half of whose messages are turns; the others ask again, edit the last
message or an earlier one, fork at a turn's end, or begin anew behind a system prompt and sometimes a document
that others have read too. The cache manager and its eviction are the real ones, without a model: all keys and
values stay, and of states there is room for a few. What is computed although its keys and values are known
counts, beside what is new. A first message says where its system prompt and its document end.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate, count
from math import log
from random import Random
from typing import Any

from benchmarks.table import Row
from kvchat.engine.api.ids import GroupId
from kvchat.engine.cache.device_tier import DeviceTier
from kvchat.engine.cache.manager import CacheManager
from kvchat.engine.formats.full.spec import FullSpec
from kvchat.engine.formats.recurrent.spec import StateTensor, state_spec
from kvchat.engine.formats.spec import Group

BLOCK_SIZE = 64
NUM_BLOCKS = 60_000
NUM_REQUESTS = 600
SEEDS = range(6)
MOST_OPEN = 12
MOST_PER_STEP = 2048
SIMULATED = {(12, False): 1.25, (32, False): 0.38, (128, False): 0.06, (32, True): 0.65, (128, True): 0.28}
"""Snapshots kept, and whether documents are shared: what a simulation of the rule had computed again."""

Segment = tuple[int, int]
"""A text by its number, and how many of its tokens are meant."""


def measure() -> list[Row]:
    rows = []
    for (num_states, with_documents), simulated in SIMULATED.items():
        shares = [_Walk(seed, num_states, with_documents=with_documents).share() for seed in SEEDS]
        what = "shared documents, " if with_documents else ""
        note = f"simulated: {simulated:.2f}"
        rows.append(Row.of(f"{what}{num_states} states: computed again", "per new", shares, note))
    return rows


@dataclass(slots=True)
class _Known:
    """What has been read behind a text."""

    length: int = 0
    behind: "dict[int, _Known]" = field(default_factory=dict)


class _Walk:
    def __init__(self, seed: int, num_states: int, *, with_documents: bool) -> None:
        shape: dict[str, Any] = {"num_kv_heads": 1, "head_dim_k": 1, "head_dim_v": 1, "dtype": "F32"}
        groups = (
            Group(id=GroupId(0), spec=FullSpec(**shape), layers=(0,)),
            Group(id=GroupId(1), spec=state_spec([StateTensor("rec", 0, "F32", (1,))], 1), layers=(1,)),
        )
        counts = {GroupId(0): NUM_BLOCKS, GroupId(1): num_states + 2}  # two for the one at work
        self._manager = CacheManager(DeviceTier(groups, counts, block_size=BLOCK_SIZE), fingerprint=bytes(32))
        self._random = Random(seed)
        self._numbers = count()
        self._known = _Known()
        self._num_again = self._num_new = 0
        self._with_documents = with_documents

    def share(self) -> float:
        """Walk, and return how many tokens were computed again for each new one."""
        random = self._random
        systems = [self._text(random.choice((300, 700, 1500, 4000))) for _ in range(5)]
        documents = [self._text(random.randint(1500, 8000)) for _ in range(10)]
        chats: list[list[Segment]] = []
        for _ in range(NUM_REQUESTS):
            kind = random.random()
            if not chats or kind < (0.3 if self._with_documents else 0.06):
                begun = [random.choice(systems)]
                if self._with_documents and random.random() < 0.5:
                    begun.append(random.choice(documents))
                chats.append(self._turn([*begun, self._message()]))
            else:
                at = -1 - min(len(chats) - 1, int(random.expovariate(0.6)))
                chats[at : at + 1 or None] = self._go_on(chats[at], kind)
            del chats[:-MOST_OPEN]
        return self._num_again / self._num_new

    def _go_on(self, chat: list[Segment], kind: float) -> list[list[Segment]]:
        """Return what becomes of a chat, which ends with a message and its answer."""
        random, (asked, length) = self._random, chat[-2]
        earlier = chat[: random.randrange(1, len(chat), 2)]
        if kind < 0.78:
            return [self._turn([*chat, self._message()])]
        if kind < 0.86:
            return [self._turn(chat[:-1])]
        if kind < 0.92:
            kept = random.randint(0, length - 1)
            changed = self._text(max(4, length - kept + random.randint(-20, 20)))
            return [self._turn([*chat[:-2], *([(asked, kept)] if kept else []), changed])]
        changed_chat = self._turn([*earlier, self._message()])
        return [changed_chat] if kind < 0.96 else [chat, changed_chat]

    def _text(self, length: int) -> Segment:
        return next(self._numbers), length

    def _message(self) -> Segment:
        random = self._random
        is_long = random.random() < 0.1
        return self._text(
            random.randint(1500, 8000) if is_long else int(random.lognormvariate(log(60), 1)) + 8
        )

    def _turn(self, text: list[Segment]) -> list[Segment]:
        """Compute a prompt and its answer, and return both."""
        answer = self._text(int(self._random.lognormvariate(log(250), 0.7)) + 5)
        manager, ids = self._manager, list(_ids(text))
        sequence = manager.open("", ids)
        ends = list(accumulate(length for _, length in text))
        sequence.checkpoints = tuple(ends[: len(text) - 1 if len(text) <= 3 else 0])
        match = manager.match(sequence)
        known_len = min(self._known_len(text), len(ids) - 1)
        self._num_again += known_len - match.length
        self._num_new += len(ids) - known_len
        assert manager.admit(sequence, match) is not None
        manager.touch(sequence)
        for ending in ([], list(_ids([answer]))):
            sequence.token_ids += ending
            num_due = sequence.num_uncomputed - bool(ending)
            while num_due > 0:
                num = sequence.step_len(min(num_due, MOST_PER_STEP), num_due)
                assert manager.extend(sequence, num) is not None
                manager.device.finish_moves()
                manager.commit(sequence, num)
                num_due -= num
        manager.log.take()
        manager.take_saves()
        manager.release(sequence)
        self._learn([*text, answer])
        return [*text, answer]

    def _known_len(self, text: list[Segment]) -> int:
        known, found = self._known, 0
        for number, length in text:
            if number not in known.behind:
                break
            known = known.behind[number]
            found += min(length, known.length)
            if known.length < length:
                break
        return found

    def _learn(self, text: list[Segment]) -> None:
        known = self._known
        for number, length in text:
            known = known.behind.setdefault(number, _Known())
            known.length = max(known.length, length)


def _ids(text: list[Segment]) -> Iterator[int]:
    for number, length in text:
        yield from range(number << 14, (number << 14) + length)
