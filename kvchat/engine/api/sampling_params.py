"""Sampling parameters of one request."""

from dataclasses import dataclass
from math import inf, isfinite

from kvchat.errors import InvalidRequest

NUM_SEEDS = 2**63
"""Seeds are in [0, NUM_SEEDS), which every generator takes."""
MOST_LENGTH_PENALTY = 10
"""Lengths to a higher power are numbers that no float holds."""
_INTEGERS = ("max_tokens", "top_k", "logprobs", "n", "best_of", "beam_width", "seed")
_NUMBERS = ("temperature", "top_p", "min_p", "repetition_penalty", "length_penalty")


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling of one request.

    Args:
        max_tokens: most tokens to generate, >= 1; None: as many as the context still holds.
        temperature: 0 is greedy; otherwise logits are divided by it.
        top_k: keep the k most probable tokens; None keeps all.
        top_p: keep the smallest set of tokens whose probability reaches it, in (0, 1].
        min_p: keep tokens at least this probable relative to the most probable one, in [0, 1).
        repetition_penalty: logits of tokens that occurred (prompt included) are divided by it if positive and
            multiplied if negative; 1 changes nothing. Keskar et al. 2019, section 4.1.
        logprobs: report the log-probability of each chosen token and of this many most probable ones, before
            temperature and truncation; None reports nothing.
        seed: seed of this request's own generator; None draws one.
        n: answers to return; above 1 they are sampled from one computed prompt and share its blocks.
        best_of: answers to sample, at least n; those with the highest mean log-probability are returned.
        beam_width: beams of a beam search, which replaces sampling; at least n, the best n are returned.
        length_penalty: exponent of the length by which a beam's log-probability is divided, from -10 to 10.
        stop_token_ids: token ids that end the answer, besides the model's own end-of-turn ids.
        ignore_eos: go on past the model's end-of-turn ids.

    Raises:
        InvalidRequest: a value is out of its range.
    """

    max_tokens: int | None = 256
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    logprobs: int | None = None
    n: int = 1
    best_of: int | None = None
    beam_width: int | None = None
    length_penalty: float = 1.0
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        self._check_types()
        limits = {
            "max_tokens": (self.max_tokens is None or self.max_tokens >= 1, "at least 1"),
            "temperature": (isfinite(self.temperature) and self.temperature >= 0, "0 or more"),
            "top_k": (self.top_k is None or self.top_k >= 1, "at least 1"),
            "top_p": (0 < self.top_p <= 1, "above 0 and at most 1"),
            "min_p": (0 <= self.min_p < 1, "at least 0 and below 1"),
            "repetition_penalty": (0 < self.repetition_penalty < inf, "above 0"),
            "logprobs": (self.logprobs is None or self.logprobs >= 0, "0 or more"),
            "seed": (self.seed is None or 0 <= self.seed < NUM_SEEDS, f"at least 0 and below {NUM_SEEDS}"),
            "n": (self.n >= 1, "at least 1"),
            "best_of": (self.best_of is None or self.best_of >= self.n, f"at least n ({self.n})"),
            "length_penalty": (
                self.beam_width is None or -MOST_LENGTH_PENALTY <= self.length_penalty <= MOST_LENGTH_PENALTY,
                f"from -{MOST_LENGTH_PENALTY} to {MOST_LENGTH_PENALTY}",
            ),
            "beam_width": (self.beam_width is None or self.beam_width >= self.n, f"at least n ({self.n})"),
        }
        for name, (is_within, words) in limits.items():
            if not is_within:
                raise InvalidRequest(f"{name} must be {words}, not {getattr(self, name)}")
        if self.beam_width is None:
            if self.num_samples > 1 and self.is_greedy:
                raise InvalidRequest("greedy answers are all the same; set a temperature above 0, or n to 1")
        elif not self.is_greedy or self.best_of is not None or self.repetition_penalty != 1:
            raise InvalidRequest("a beam search takes no temperature, best_of or repetition_penalty")

    def _check_types(self) -> None:
        """Refuse what is no number here, where it was said: in the engine it would end every request."""
        for name in _INTEGERS:
            value = getattr(self, name)
            if not (_is_whole(value) or (value is None and name != "n")):
                raise InvalidRequest(f"{name} must be a whole number, not {value!r}")
        for name in _NUMBERS:
            value = getattr(self, name)
            if not (_is_whole(value) or isinstance(value, float)):
                raise InvalidRequest(f"{name} must be a number, not {value!r}")
        if not all(map(_is_whole, self.stop_token_ids)):
            raise InvalidRequest(f"stop_token_ids must be whole numbers, not {self.stop_token_ids!r}")

    @property
    def num_samples(self) -> int:
        """Answers that are sampled, whether returned or not."""
        return self.n if self.best_of is None else self.best_of

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
