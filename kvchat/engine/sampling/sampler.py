"""Logits → token ids. Each request draws from its own generator, so its text does not depend on the batch.

On a GPU tokens of all rows are drawn where the logits lie (`draw`), and nothing is waited for. Dimensions: R
rows, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from kvchat.engine.api.events import TokenLogprobs
from kvchat.engine.api.ids import RequestId
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.engine.kernels.triton_support import upload

LEAST_TEMPERATURE = 1e-6
"""Below this, float32 leaves only the most probable token anyway, and dividing by less would overflow."""


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """One sequence whose next token is due.

    Args:
        token_ids: all it has so far.
        draft: a guess at the next tokens; there are logits behind each.
    """

    request: RequestId
    params: SamplingParams
    token_ids: Sequence[int]
    draft: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SampledToken:
    """The next token of a row; `logprobs` where they were asked for."""

    token_id: int
    logprobs: TokenLogprobs | None = None


class Drawn:
    """Tokens where they were drawn, on their way to the host.

    Args:
        tokens: a token for each row [R], int64.
        logits: [R, V], that they were drawn from.
    """

    def __init__(self, tokens: Tensor, logits: Tensor) -> None:
        self.tokens = tokens
        found = torch.stack([tokens, torch.isfinite(logits.amax(dim=1)).long()], dim=1)
        self._host = torch.empty(found.shape, dtype=found.dtype, pin_memory=found.is_cuda)
        self._host.copy_(found, non_blocking=True)
        self._copied: torch.cuda.Event | None = None
        if found.is_cuda:
            self._copied = torch.cuda.Event()
            self._copied.record()

    def tokens_here(self) -> list[int | None]:
        """Return the tokens; None of a row of logits without a usable number. Waits for them."""
        if self._copied is not None:
            self._copied.synchronize()
        return [token if is_usable else None for token, is_usable in self._host.tolist()]


@dataclass(slots=True)
class _State:
    """What is kept between the tokens of one sequence."""

    generator: Generator | None = None
    occurred: Tensor | None = None
    """Which tokens have occurred [V]; only with a repetition penalty."""


class Sampler:
    """Chooses the next token of each sequence, and those behind it as long as its draft has them right."""

    def __init__(self, seed: int | None, *, draws_there: bool = False) -> None:
        """Args:
        seed: seed of the seeds of requests that bring none; None: from the system.
        draws_there: draw where the logits lie also on a processor.
        """
        self._draws_there = draws_there
        self._seeds = Generator()
        if seed is None:
            self._seeds.seed()
        else:
            self._seeds.manual_seed(seed)
        self._states: dict[RequestId, _State] = {}

    def sample(self, logits: Tensor, rows: Sequence[SamplingRow]) -> list[list[SampledToken | None]]:
        """Return the next tokens of each sequence; None where a row of logits has no usable number.

        Each token is chosen from the logits behind the one before, as it would be without a draft, so a
        sequence has one more than the tokens of its draft that were right.

        Args:
            logits: [R, V]: for each sequence a row, and as many behind it as its draft has tokens.
        """
        if not rows:
            return []
        if self.draws_there(logits, rows):
            return choices(self.begin(logits, rows))
        greedy = logits.argmax(dim=-1).tolist()
        finite = torch.isfinite(logits.amax(dim=-1)).tolist()
        chosen: list[list[SampledToken | None]] = []
        start = 0
        for row in rows:
            own = range(start, start := start + 1 + len(row.draft))
            chosen.append([])
            for number, drafted in zip(own, (*row.draft, None), strict=True):
                choice = self._choose(logits[number], greedy[number], row) if finite[number] else None
                chosen[-1].append(choice)
                if choice is None or choice.token_id != drafted:
                    break
        return chosen

    def draws_there(self, logits: Tensor, rows: Sequence[SamplingRow]) -> bool:
        """Whether tokens are drawn where the logits lie. Pure."""
        return (logits.is_cuda or self._draws_there) and all(map(_is_plain, rows))

    def begin(self, logits: Tensor, rows: Sequence[SamplingRow]) -> Drawn:
        """Begin to do as `sample` where the logits lie, and wait for nothing; `choices` gives the tokens.

        Args:
            rows: without drafts, penalties, and log-probabilities to tell.
        """
        numbers = [0.0 if row.params.is_greedy else self._number(row) for row in rows]
        return Drawn(draw(logits, [row.params for row in rows], numbers), logits)

    def forget(self, request: RequestId) -> None:
        """Drop what is kept of a finished request."""
        self._states.pop(request, None)

    def _choose(self, logits: Tensor, greedy: int, row: SamplingRow) -> SampledToken:
        params = row.params
        raw = logits
        if params.repetition_penalty != 1:
            logits = self._penalized(logits, row)
            greedy = int(logits.argmax())
        token = greedy if params.is_greedy else self._draw(logits, row)
        if params.repetition_penalty != 1:
            self._occurred(row, logits.numel())[token] = True
        report = None if params.logprobs is None else token_logprobs(raw, token, params.logprobs)
        return SampledToken(token, report)

    def _draw(self, logits: Tensor, row: SamplingRow) -> int:
        if logits.is_cuda:  # as in `begin`: a text must not depend on who else asks for what
            return int(draw(logits[None], [row.params], [self._number(row)]))
        probabilities = distribution(logits, row.params).cpu()
        return int(torch.multinomial(probabilities, 1, generator=self._generator(row)))

    def _number(self, row: SamplingRow) -> float:
        """Return the request's next number in [0, 1)."""
        return float(torch.rand((), generator=self._generator(row), dtype=torch.float64))

    def _penalized(self, logits: Tensor, row: SamplingRow) -> Tensor:
        penalty = row.params.repetition_penalty
        weakened = torch.where(logits > 0, logits / penalty, logits * penalty)
        limits = torch.finfo(logits.dtype)
        weakened = weakened.clamp(limits.min, limits.max)  # a tiny penalty makes infinities
        return torch.where(self._occurred(row, logits.numel()).to(logits.device), weakened, logits)

    def _occurred(self, row: SamplingRow, vocab_size: int) -> Tensor:
        state = self._states.setdefault(row.request, _State())
        if state.occurred is None:
            state.occurred = torch.zeros(vocab_size, dtype=torch.bool)
            state.occurred[torch.tensor(row.token_ids)] = True
        return state.occurred

    def _generator(self, row: SamplingRow) -> Generator:
        state = self._states.setdefault(row.request, _State())
        if state.generator is None:
            seed = row.params.seed
            if seed is None:
                seed = int(torch.randint(2**62, (1,), generator=self._seeds))
            state.generator = Generator().manual_seed(seed)
        return state.generator


def choices(drawn: Drawn) -> list[list[SampledToken | None]]:
    """Return tokens that were drawn as `Sampler.sample` does; waits for them."""
    return [[None if token is None else SampledToken(token)] for token in drawn.tokens_here()]


def _is_plain(row: SamplingRow) -> bool:
    return not row.draft and row.params.repetition_penalty == 1 and row.params.logprobs is None


def distribution(logits: Tensor, params: SamplingParams) -> Tensor:
    """Return the probabilities [V] that `params` leaves: temperature, top-k, top-p, then min-p."""
    scaled = (logits - logits.max()) / max(params.temperature, LEAST_TEMPERATURE)
    if params.top_k is not None and params.top_k < scaled.numel():
        least = scaled.topk(params.top_k).values[-1]
        scaled = scaled.masked_fill(scaled < least, float("-inf"))
    probabilities = scaled.softmax(dim=-1)
    if params.top_p < 1:
        ordered, order = probabilities.sort(descending=True)
        before = ordered.cumsum(dim=-1) - ordered
        is_cut = before >= params.top_p
        is_cut[0] = False  # a top_p that float32 cannot tell from 0 still leaves the most probable token
        probabilities = probabilities.index_fill(0, order[is_cut], 0.0)
    if params.min_p > 0:
        least_probability = params.min_p * probabilities.max()
        probabilities = probabilities.masked_fill(probabilities < least_probability, 0.0)
    return probabilities / probabilities.sum()


def token_logprobs(logits: Tensor, token: int, num_top: int) -> TokenLogprobs:
    """Return the log-probability of `token` under `logits` [V], and the `num_top` highest."""
    logprobs = logits.log_softmax(dim=-1)
    values, ids = logprobs.topk(min(num_top, logprobs.numel()))
    return TokenLogprobs(
        logprob=float(logprobs[token]), top=tuple(zip(ids.tolist(), values.tolist(), strict=True))
    )


def draw(logits: Tensor, params: Sequence[SamplingParams], numbers: Sequence[float]) -> Tensor:
    """Return a token for each row [R], int64; follows from tensors alone.

    Which of the tokens left is drawn for a number is another choice than a processor's, and as good.

    Args:
        logits: [R, V], float32.
        numbers: of each row, in [0, 1): where in the distribution that its parameters leave the token lies.
    """
    greedy = logits.argmax(dim=1)
    if all(each.is_greedy for each in params):
        return greedy
    rows = [_row(each, number) for each, number in zip(params, numbers, strict=True)]
    columns = upload(rows, logits.device, torch.float64)
    is_greedy, temperature, top_k, top_p, min_p, _ = columns.float().unbind(1)
    scaled = (logits - logits.amax(dim=1, keepdim=True)) / temperature[:, None]
    scaled, order = scaled.sort(dim=1, descending=True)
    last = top_k.long().clamp(max=scaled.shape[1])[:, None] - 1
    scaled = scaled.masked_fill(scaled < scaled.gather(1, last), float("-inf"))
    probabilities = scaled.softmax(dim=1)
    before = probabilities.cumsum(dim=1) - probabilities
    is_cut = (before >= top_p[:, None]) & (top_p[:, None] < 1)
    is_cut |= probabilities < min_p[:, None] * probabilities[:, :1]
    is_cut[:, 0] = False
    sums = probabilities.masked_fill(is_cut, 0).double().cumsum(dim=1)
    place = (sums <= columns[:, 5:] * sums[:, -1:]).sum(dim=1, keepdim=True)
    # Rounding may leave a number behind the last sum: the last token that has a share is meant.
    num_left = (sums < sums[:, -1:]).sum(dim=1, keepdim=True)
    drawn = order.gather(1, torch.minimum(place, num_left))[:, 0]
    return torch.where(is_greedy.bool(), greedy, drawn)


def _row(params: SamplingParams, number: float) -> tuple[float, ...]:
    """Return the numbers of a row; what is not asked for as numbers that change nothing."""
    top_k = params.top_k if params.top_k is not None else 2**24
    temperature = 1.0 if params.is_greedy else max(params.temperature, LEAST_TEMPERATURE)
    return float(params.is_greedy), temperature, float(top_k), params.top_p, params.min_p, number
