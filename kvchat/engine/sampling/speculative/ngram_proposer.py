"""N-gram proposer: drafts tokens while expected acceptance pays for the longer step.

A draft is what followed the last time (`NgramIndex`). Its probability comes from every token chosen before
(`AcceptanceRate`), what computing it costs from every step timed before (`StepCosts`). The tokens that are
most probably right are drafted, over all sequences, as many as make the step yield most tokens per second.
Where none pay nothing is drafted, but for rare steps that find out what it costs.

Source: Saxena 2023, prompt lookup decoding; Mahoney's lpaq for keeping the place of a match.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from kvchat.engine.api.ids import RequestId
from kvchat.engine.sequences.batch_plan import Batch
from kvchat.engine.sequences.completion_sequence import Completion

MOST_DRAFTED = 15
"""Tokens of one draft: with the one before them as many rows as kernels for few rows take."""
MOST_OF_A_STEP = 32
"""Tokens of all drafts of a step: each has a row of logits, for which no memory was set aside."""
READ_AT_ONCE = 1024
"""Tokens indexed beside one step: long prompts are read in parts, so that no step waits for it."""
LEAST_GAIN = 1.04
"""A step with drafts must yield this many times the tokens per second: estimates err by as much."""
HOPED_ROW = 0.04
"""What is tried to find out its cost is hoped to cost so much of a step for each row. It is low: what was
tried in vain is known from then on, and what is not tried is never known."""
PROBE_SHARE = 0.01
"""Finding out what drafts cost by now may take this part of the time."""
MOST_SAVED = 8.0
"""As many steps' worth of time may be saved up for it; a new engine begins with so much."""
MOST_DELAY = 1.5
"""Several sequences wait for each other's drafts: their step takes at most this many times as long."""
NGRAM_LENS = (3, 2)
"""Tokens by which a place is looked up, longest first."""
MOST_TOKENS = 2**15
"""So many of the last tokens can be found again at least, and at most twice as many."""
MEMORY = 0.96
"""What the last guess counts for, the next one counts so much less: about 25 of them decide."""
PRIOR_WEIGHT = 3.0
"""A new estimate begins as if it had seen so many guesses turn out as those of others."""
PRIORS = (0.3, 0.4, 0.55, 0.7, 0.8, 0.9)
"""What is assumed before anything was seen, for the kinds of matches."""
WINDOW = 9
"""Measured steps of one kind that count; their median does."""
LEAST = 3
"""Fewer are not believed: the first steps of a kind may compile, allocate or wait."""


class NgramIndex:
    """Where the end of a growing sequence occurred before, and what followed.

    It keeps one place: the one that the last tokens have agreed with for longest without a break, as match
    models of data compressors do. Only when a token differs from the one expected there is a new place looked
    up, by the last three tokens, else by the last two. Each token costs the same, however many there are.

    Args:
        most_tokens: bounds the memory: at most four n-grams are kept for each, about 150 bytes apiece.
    """

    def __init__(self, most_tokens: int = MOST_TOKENS) -> None:
        self._most_tokens = most_tokens
        self._tokens: list[int] = []
        self._source = 0
        self.match_len = 0
        """How many of the last tokens agree with those before the place; 0: there is none."""
        # Ends of the latest occurrences. When the young ones are many enough, the old ones are forgotten.
        self._young: dict[tuple[int, ...], int] = {}
        self._old: dict[tuple[int, ...], int] = {}

    def __len__(self) -> int:
        return len(self._tokens)

    @property
    def expected(self) -> int | None:
        """The token that followed at the place; None where there is no place."""
        return self._tokens[self._source] if self.match_len else None

    def feed(self, token_ids: Iterable[int]) -> None:
        """Take the sequence's next tokens."""
        for token in token_ids:
            if token == self.expected:
                self._source += 1
                self.match_len += 1
            else:
                self.match_len = 0
            self._tokens.append(token)
            self._look_up()

    def draft(self, num_tokens: int) -> tuple[int, ...]:
        """Return as many tokens as wanted that would follow if the sequence went on as it did at the place,
        repeating itself where it is reached; nothing without a place. Pure.
        """
        if not self.match_len:
            return ()
        found = self._tokens[self._source : self._source + num_tokens]
        period = len(found)
        return tuple(found[number % period] for number in range(num_tokens))

    def _look_up(self) -> None:
        """Index the n-grams that end here, and find a place for the next token if there is none."""
        end = len(self._tokens)
        for length in NGRAM_LENS:
            if end < length:
                continue
            ngram = tuple(self._tokens[-length:])
            if not self.match_len:
                found = self._young.get(ngram) or self._old.get(ngram)
                if found:
                    self._source, self.match_len = found, length
            self._young[ngram] = end
        if len(self._young) >= len(NGRAM_LENS) * self._most_tokens:
            self._old, self._young = self._young, {}


class AcceptanceRate:
    """How often the next token is the expected one, by the length of the match: a moving estimate for one
    sequence. Every token that is chosen tells, also where nothing was drafted, so it costs no step.

    Args:
        others: estimate over all sequences, which is followed until there is one of its own; this one is told
            of everything that is seen here.
    """

    def __init__(self, others: "AcceptanceRate | None" = None) -> None:
        self._others = others
        self._right = [0.0] * len(PRIORS)
        self._seen = [0.0] * len(PRIORS)

    def observe(self, match_len: int, is_right: bool) -> None:
        """Note whether the token that was expected behind `match_len` agreeing ones came."""
        kind = _kind_of_match(match_len)
        if not self._seen[kind]:
            self._right[kind] = PRIOR_WEIGHT * self.probability(match_len)
            self._seen[kind] = PRIOR_WEIGHT
        self._right[kind] = MEMORY * self._right[kind] + is_right
        self._seen[kind] = MEMORY * self._seen[kind] + 1
        if self._others is not None:
            self._others.observe(match_len, is_right)

    def probability(self, match_len: int) -> float:
        """Return how probably the token expected behind `match_len` agreeing ones comes. Pure."""
        kind = _kind_of_match(match_len)
        if self._seen[kind]:
            return self._right[kind] / self._seen[kind]
        return PRIORS[kind] if self._others is None else self._others.probability(match_len)


def _kind_of_match(match_len: int) -> int:
    """Return 0 for 2 agreeing tokens, 1 for 3, 2 for 4 and 5, 3 up to 9, 4 up to 17, 5 for more."""
    if match_len <= 3:
        return max(0, match_len - 2)
    return min((match_len - 2).bit_length(), len(PRIORS) - 1)


class StepCosts:
    """How much longer steps with drafts take, measured at run time. Nothing here knows a clock.

    Where decoding waits for memory a few more rows cost next to nothing, and where it computes each costs as
    much as the first. So what is compared was measured with equally many sequences and about as long texts.
    """

    def __init__(self) -> None:
        # By the number of sequences and the binary length of that of keys, then by the kind of drafts.
        self._recent: dict[tuple[int, int], dict[int, deque[float]]] = {}

    def observe(self, num_sequences: int, num_keys: int, num_drafted: int, seconds: float) -> None:
        """Note that a step took `seconds`.

        Args:
            num_sequences: sequences of which a token was computed.
            num_keys: tokens of all of them together, which attention reads.
            num_drafted: further tokens.
        """
        if seconds > 0:
            kinds = self._recent.setdefault((num_sequences, num_keys.bit_length()), {})
            kinds.setdefault(_kind_of_draft(num_drafted), deque(maxlen=WINDOW)).append(seconds)

    def plain_s(self, num_sequences: int, num_keys: int) -> float | None:
        """Return the time of a step without drafts; None where it is not known yet. Pure."""
        known = (_median(kinds, 0) for kinds in self._nearest(num_sequences, num_keys))
        return next((seconds for seconds in known if seconds), None)

    def relative(self, num_sequences: int, num_keys: int, num_drafted: int) -> float | None:
        """Return the time of a step with drafts in times of one without; None where it is not known yet.

        Texts of a length that was not measured count as the nearest one that was. Pure.
        """
        kind = _kind_of_draft(num_drafted)
        for kinds in self._nearest(num_sequences, num_keys):
            plain, drafted = _median(kinds, 0), _median(kinds, kind)
            if plain and drafted:
                return drafted / plain
        return None

    def _nearest(self, num_sequences: int, num_keys: int) -> Iterator[Mapping[int, deque[float]]]:
        size = num_keys.bit_length()
        sizes = [size for count, size in self._recent if count == num_sequences]
        for near in sorted(sizes, key=lambda known: (abs(known - size), known)):
            yield self._recent[num_sequences, near]


def _kind_of_draft(num_drafted: int) -> int:
    """Return 0 without drafts, 1 for one token, 2 for two, 3 for 3 and 4, 4 up to 8, and so on."""
    return (num_drafted - 1).bit_length() + 1 if num_drafted else 0


def _median(kinds: Mapping[int, deque[float]], kind: int) -> float | None:
    known = kinds.get(kind, ())
    return median(known) if len(known) >= LEAST else None


@dataclass(slots=True)
class _Text:
    """What is kept of one sequence."""

    acceptance: AcceptanceRate
    repeats: NgramIndex = field(default_factory=NgramIndex)

    def read(self, completion: Completion, most: int) -> bool:
        """Take what is new of a sequence, at most so many tokens of its prompt; False if there is more."""
        token_ids, known = completion.sequence.token_ids, len(self.repeats)
        prompt_end = min(completion.prompt_len, known + most)
        if known < prompt_end:
            self.repeats.feed(token_ids[known:prompt_end])
        if len(self.repeats) < completion.prompt_len:
            return False
        for token in token_ids[len(self.repeats) :]:
            expected = self.repeats.expected
            if expected is not None:
                self.acceptance.observe(self.repeats.match_len, expected == token)
            self.repeats.feed((token,))
        return True

    def chances(self, most: int) -> list[float]:
        """Return how probably the first, the first two, three, ... tokens of a draft are right. Pure."""
        chances: list[float] = []
        chance, match_len = 1.0, self.repeats.match_len
        for number in range(most if match_len else 0):
            chance *= self.acceptance.probability(match_len + number)
            chances.append(chance)
        return chances


class NgramProposer:
    """The drafter of one engine."""

    def __init__(self) -> None:
        self._texts: dict[RequestId, _Text] = {}
        self._acceptance = AcceptanceRate()
        self._costs = StepCosts()
        self._saved = MOST_SAVED
        """Time that probing may take by now, in steps without drafts."""
        self._is_probing = False

    def propose(
        self, due: Sequence[Completion], num_beside: int, most: int
    ) -> Mapping[RequestId, tuple[int, ...]]:
        """See `Drafter.propose`. Beside prompts nothing is drafted: what it costs there is not known."""
        texts = {completion.id: self._text(completion) for completion in due}
        each = -(-READ_AT_ONCE // len(due))
        is_read = [texts[completion.id].read(completion, each) for completion in due]
        if num_beside:
            return {}
        ranked = sorted(
            (
                (chance, completion.id)
                for completion, is_ready in zip(due, is_read, strict=True)
                if is_ready
                for chance in texts[completion.id].chances(min(MOST_DRAFTED, completion.most_drafted))
            ),
            key=lambda pair: -pair[0],
        )[: min(most, MOST_OF_A_STEP)]
        num_drafted = self._num_worth_it([chance for chance, _ in ranked], due)
        nums: dict[RequestId, int] = {}
        for _, number in ranked[:num_drafted]:
            nums[number] = nums.get(number, 0) + 1
        return {number: texts[number].repeats.draft(num) for number, num in nums.items()}

    def foresees(self, completion: Completion) -> bool:
        text = self._text(completion)
        return not text.read(completion, READ_AT_ONCE) or text.repeats.match_len > 0

    def observe(self, batch: Batch, seconds: float) -> None:
        num_keys = sum(chunk.end for chunk in batch.chunks)
        plain_s = self._costs.plain_s(len(batch.chunks), num_keys)
        if batch.num_drafted and self._is_probing and plain_s is not None:
            self._saved -= max(0.0, seconds / plain_s - 1)
        self._saved = min(self._saved + PROBE_SHARE, MOST_SAVED)
        self._costs.observe(len(batch.chunks), num_keys, batch.num_drafted, seconds)

    def forget(self, request: RequestId) -> None:
        self._texts.pop(request, None)

    def _text(self, completion: Completion) -> _Text:
        if completion.id not in self._texts:
            self._texts[completion.id] = _Text(AcceptanceRate(self._acceptance))
        return self._texts[completion.id]

    def _num_worth_it(self, chances: Sequence[float], due: Sequence[Completion]) -> int:
        """Return how many of the most probable tokens to draft.

        Args:
            chances: how probable each is, falling.
        """
        self._is_probing = False
        num_keys = sum(len(completion.sequence.token_ids) for completion in due)
        if not chances or self._costs.plain_s(len(due), num_keys) is None:
            return 0
        best, best_gain = 0, LEAST_GAIN
        probe, probe_gain = 0, LEAST_GAIN
        is_untried = False
        won = float(len(due))
        for num_drafted, chance in enumerate(chances, start=1):
            won += chance
            if num_drafted & (num_drafted - 1) and num_drafted < len(chances):
                continue  # costs are measured for powers of two
            yielded = won / len(due)
            cost = self._costs.relative(len(due), num_keys, num_drafted)
            if cost is not None and yielded / cost > best_gain and (len(due) == 1 or cost <= MOST_DELAY):
                best, best_gain = num_drafted, yielded / cost
            hoped_gain = yielded / (1 + HOPED_ROW * num_drafted)
            if not is_untried and hoped_gain > probe_gain:
                # The longest that may pay, or the shortest that nobody has tried.
                probe, probe_gain, is_untried = num_drafted, hoped_gain, cost is None
        if probe and self._saved > 0 and (is_untried or not best):
            self._is_probing = True
            return probe
        return best
