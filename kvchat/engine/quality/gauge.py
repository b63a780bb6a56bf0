"""Measures what cache formats lose on a text: its last answer tokens are predicted again in each format.

The text's tokens are what they are; only what attention reads differs. So every number is paired: the same
token, before it the same tokens, on the exact cache and in a format. Dimensions: N tokens, V vocabulary.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor

from kvchat.engine.api.cache_format import EXACT, parse_cache_format
from kvchat.engine.api.config import EngineConfig
from kvchat.engine.api.loss import FormatLoss, GaugeReport, LayerLoss, Loss
from kvchat.engine.api.view import require_steps
from kvchat.engine.formats.spec import Group
from kvchat.engine.kernels.threads import choose_threads, usable_cores
from kvchat.engine.models.linear.packed import pack_linears
from kvchat.engine.models.load import LoadedModel, choose_device
from kvchat.engine.quality.convert import load_exact
from kvchat.engine.quality.replay import Replay, ReplaySize
from kvchat.engine.startup.assembly import placed, shadows_of
from kvchat.engine.startup.weights import Candidate, groups_in
from kvchat.errors import ConfigError, ContextOverflow, UsageError
from kvchat.platform.host_memory import available_bytes

MOST_ROWS = 2**26
"""About as many logits of the exact cache are kept to compare with."""

MOST_COPIES = 8

PIECE_NUMBERS = 2**24
"""About as many numbers of a distribution exist in double precision at one time."""

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Text:
    """Tokens, and which of them are predicted again: positions, ascending, from 1 on.

    Args:
        prompt_ends: tokens before each answer, ascending: there long prompts are pruned. Empty: before each
            run of wanted tokens.
    """

    token_ids: tuple[int, ...]
    wanted: tuple[int, ...]
    prompt_ends: tuple[int, ...] = ()

    @property
    def start(self) -> int:
        """The position of the first token that is computed again; all before it is context."""
        return self.wanted[0] - 1


@dataclass(frozen=True, slots=True)
class _Truth:
    """A text on the exact cache: the logits [N, V] before its wanted tokens."""

    replay: Replay
    logits: Tensor


@dataclass(frozen=True, slots=True)
class TokenLosses:
    """Of each predicted token [N]: whether both put the same one first, the divergence in nats, the text's
    token's log-probability on the exact cache and in the format, and whether each puts it first.
    """

    agree: Tensor
    divergence: Tensor
    exact: Tensor
    approximate: Tensor
    exact_hits: Tensor
    approximate_hits: Tensor

    def loss(self) -> Loss:
        """Return what all tokens together say."""
        recalled = self.approximate_hits[self.exact_hits]
        return Loss(
            num_tokens=len(self.agree),
            agreement=float(self.agree.double().mean()),
            divergence=float(self.divergence.mean()),
            worst_divergence=float(self.divergence.max()),
            perplexity_ratio=float((self.exact - self.approximate).mean().exp()),
            recall=float(recalled.double().mean()) if len(recalled) else None,
        )


def token_losses(exact: Tensor, approximate: Tensor, token_ids: Tensor) -> TokenLosses:
    """Compare logits [N, V] of two caches before the text's tokens [N].

    Returns:
        Tensors on the processor; numbers in double precision.
    """
    size = max(1, PIECE_NUMBERS // exact.shape[1])
    pieces = [
        _compare(*(part[start : start + size] for part in (exact, approximate, token_ids)))
        for start in range(0, len(exact), size)
    ]
    return joined(pieces)


def joined(parts: Sequence[TokenLosses]) -> TokenLosses:
    """Return the losses of all tokens together."""
    names = [field.name for field in fields(TokenLosses)]
    return TokenLosses(**{name: torch.cat([getattr(part, name) for part in parts]) for name in names})


def _compare(exact: Tensor, approximate: Tensor, token_ids: Tensor) -> TokenLosses:
    likely, found = (logits.double().log_softmax(dim=1) for logits in (exact, approximate))
    shares = likely.exp()
    terms = torch.where(shares > 0, shares * (likely - found), 0.0)
    divergence = terms.sum(dim=1).clamp_min(0).nan_to_num(nan=torch.inf, posinf=torch.inf)
    chosen, other = exact.argmax(dim=1), approximate.argmax(dim=1)
    texts = [part.gather(1, token_ids[:, None])[:, 0] for part in (likely, found)]
    results = (chosen == other, divergence, *texts, chosen == token_ids, other == token_ids)
    return TokenLosses(*(result.cpu() for result in results))


class Gauge:
    """One model, on whose caches texts are replayed.

    Args:
        candidate: the model, loaded for the exact format.
        config: tokens of a block, and most tokens computed at once.
        num_copies: how many copies of the model keep this machine's processors busy.
    """

    def __init__(self, candidate: Candidate, config: EngineConfig, num_copies: int = 1) -> None:
        self.num_copies = num_copies
        self.max_context = candidate.loaded.max_context
        """The most tokens of a text."""
        self._served = candidate.served
        self._loaded = candidate.loaded
        self._block_size = config.block_size
        self._chunk_len = config.max_batch_tokens

    @classmethod
    def load(cls, model_dir: Path, config: EngineConfig, report: Report = lambda _: None) -> "Gauge":
        """Load a model for nothing else.

        Raises:
            ModelError, CapacityError: it cannot be loaded.
        """
        candidate = load_exact(model_dir, config, report)
        pack_linears(candidate.loaded.module)
        device = choose_device(config.device)
        return cls(candidate, config, _num_copies(candidate.loaded, device, config.threads))

    def supported(self, formats: Iterable[str]) -> tuple[str, ...]:
        """Return those of some formats in which this model can be stored and computed. Pure."""
        found = []
        for one in formats:
            with suppress(ConfigError):
                self._groups(one)
                found.append(one)
        return tuple(found)

    def replay(self, cache_format: str, max_len: int, back_len: int = 0) -> Replay:
        """Return a replay in a format; it computes from now on.

        Args:
            max_len: tokens of the longest text.
            back_len: most tokens that are taken back.

        Raises:
            ConfigError: the model cannot be stored in this format; the message says why.
            OutOfMemory: a text of that length does not fit.
        """
        size = ReplaySize(
            max_len=max_len, chunk_len=self._chunk_len, back_len=back_len, block_size=self._block_size
        )
        device = next(self._loaded.module.parameters()).device
        groups = placed(self._groups(cache_format), device)
        shadows = shadows_of(self._loaded, groups, available_bytes())
        replay = Replay(self._served.make_pass, groups, size, device, shadows)
        replay.begin()
        return replay

    def measure(
        self,
        text: Text,
        formats: Sequence[str],
        *,
        is_converted: bool = False,
        layers_in: str | None = None,
        report: Report = lambda _: None,
    ) -> GaugeReport:
        """Measure formats on a text.

        Args:
            is_converted: convert what is before the replayed tokens from the exact cache, as a conversation
                is converted, instead of computing all of it in the format.
            layers_in: also convert each layer alone, to this format.

        Raises:
            ConfigError: the model cannot be stored in one of the formats.
            UsageError: there is nothing to predict, or more than can be kept.
            ContextOverflow: the text is longer than the model's context.
        """
        self._require(text, formats, layers_in)
        report(f"computing {len(text.token_ids)} tokens on the exact cache …")
        replay = self.replay(EXACT, len(text.token_ids), len(text.token_ids) - text.start)
        replay.keep_state(text.start)
        truth = _Truth(replay, predict(replay, text, 0))
        losses = []
        for cache_format in formats:
            report(f"replaying {len(text.wanted)} tokens in {cache_format} …")
            losses.append(self._format_loss(text, truth, cache_format, is_converted=is_converted))
        layers = tuple(self._layer_losses(text, truth, layers_in, report)) if layers_in else ()
        return GaugeReport(
            model="",
            num_tokens=len(text.token_ids),
            num_replayed=len(text.wanted),
            exact_bytes=truth.replay.num_bytes(len(text.token_ids)),
            exact_token_bytes=truth.replay.token_bytes(len(text.token_ids)),
            formats=tuple(losses),
            layers=layers,
        )

    def quantized_layers(self, cache_format: str) -> tuple[int, ...]:
        """Return the layers that a format quantizes in this model, ascending."""
        groups = self._groups(cache_format)
        return tuple(sorted(layer for group in groups if not group.spec.is_exact for layer in group.layers))

    def _groups(self, cache_format: str) -> tuple[Group, ...]:
        view = parse_cache_format(cache_format).view
        if view is not None:
            require_steps(view, self._chunk_len)
        return groups_in(self._served, cache_format, self._block_size)

    def _require(self, text: Text, formats: Sequence[str], layers_in: str | None) -> None:
        for cache_format in formats:
            self._groups(cache_format)
        if layers_in is not None and not self.quantized_layers(layers_in):
            raise ConfigError(f"'{layers_in}' quantizes no layer of this model; give --layers another format")
        if not text.wanted:
            raise UsageError("there is no answer to replay; ask something first")
        if len(text.token_ids) > self.max_context:
            raise ContextOverflow(
                f"{len(text.token_ids)} tokens exceed this model's context of {self.max_context}"
            )
        most = MOST_ROWS // self._loaded.vocab_size
        if len(text.wanted) > most:
            raise UsageError(f"at most {most} tokens of this model can be replayed; give a smaller --last")

    def _format_loss(self, text: Text, truth: _Truth, cache_format: str, *, is_converted: bool) -> FormatLoss:
        start_s = perf_counter()
        replay = self.replay(cache_format, len(text.token_ids))
        is_converted = is_converted and not replay.is_view  # the blocks of a view are exact as they are
        start = text.start if is_converted else 0
        if is_converted:
            replay.convert(truth.replay, start)
        found = predict(replay, text, start)
        wanted = torch.tensor([text.token_ids[position] for position in text.wanted])
        return FormatLoss(
            cache_format=cache_format,
            num_bytes=replay.num_bytes(len(text.token_ids)),
            token_bytes=replay.token_bytes(len(text.token_ids)),
            loss=token_losses(truth.logits, found, wanted).loss(),
            is_converted=is_converted,
            seconds=perf_counter() - start_s,
        )

    def _layer_losses(
        self, text: Text, truth: _Truth, cache_format: str, report: Report
    ) -> Iterator[LayerLoss]:
        for layer in self.quantized_layers(cache_format):
            report(f"replaying with layer {layer} alone in {cache_format} …")
            alone = f"exact; layers {layer}={cache_format}"
            found = self._format_loss(text, truth, alone, is_converted=True)
            yield LayerLoss(layer=layer, cache_format=cache_format, loss=found.loss)


def _num_copies(loaded: LoadedModel, device: torch.device, num_threads: int | None) -> int:
    """Return 1, unless the model is so small that one thread computes it, and nobody asked for that."""
    is_small = device.type == "cpu" and choose_threads(loaded.weight_bytes, num_threads) == 1
    return min(MOST_COPIES, usable_cores()) if is_small and num_threads is None else 1


def predict(replay: Replay, text: Text, start: int) -> Tensor:
    """Compute a text from `start` on and return the logits [N, V] before its wanted tokens."""
    found = []
    runs = list(_runs(text.wanted))
    if replay.follows_prompts:
        return _predict_planned(replay, text, runs)
    for first, end in runs:
        replay.compute(text.token_ids[start : first - 1], start)
        found.append(replay.compute(text.token_ids[first - 1 : end - 1], first - 1, end - first).cpu())
        start = end - 1
    return torch.cat(found)


def _predict_planned(replay: Replay, text: Text, runs: Sequence[tuple[int, int]]) -> Tensor:
    """Return the same where prompts are pruned, or get a shadow, before they are answered."""
    last = text.wanted[-1]
    ends = text.prompt_ends or [first for first, _ in runs]
    replay.plan([end for end in ends if end <= last])
    wanted = {position - 1 for position in text.wanted}
    found: list[Tensor] = []
    for first, rows in replay.steps(text.token_ids[:last], 0, last - text.start):
        if places := [place for place in range(len(rows)) if first + place in wanted]:
            found.append(rows[places].cpu())
    return torch.cat(found)


def _runs(positions: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield runs [first, end) of consecutive positions."""
    first = end = positions[0]
    for position in positions:
        if position != end:
            yield first, end
            first = position
        end = position + 1
    yield first, end
