"""Loss of a cache format on a text, against the exact cache. Values."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """How predictions under a format differ from those on an exact cache, over some tokens of a text.

    Args:
        num_tokens: that were predicted.
        agreement: share of them for which both put the same token first.
        divergence: mean Kullback-Leibler divergence of the format's distribution from the exact one, in nats.
        worst_divergence: the largest of a single token.
        perplexity_ratio: of the text, under the format to on the exact cache; 1 where nothing is lost.
        recall: of the text's tokens that the exact cache puts first, the share that the format does too;
            None: it puts none first.
    """

    num_tokens: int
    agreement: float
    divergence: float
    worst_divergence: float
    perplexity_ratio: float
    recall: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatLoss:
    """One format on one text.

    Args:
        num_bytes: of the text's KV in this format, exact blocks and all metadata counted.
        token_bytes: of one token in the blocks of which most of a long text consists, windows left out; over
            a view what the text holds of them, divided by its tokens.
        is_converted: whether the text up to the replayed tokens was computed exactly and quantised then;
            otherwise all of it was computed in this format.
        seconds: that computing took.
    """

    cache_format: str
    num_bytes: int
    token_bytes: float
    loss: Loss
    is_converted: bool
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerLoss:
    """What is lost if one layer alone is converted."""

    layer: int
    cache_format: str
    loss: Loss


@dataclass(frozen=True, slots=True, kw_only=True)
class GaugeReport:
    """All that was measured on one text.

    Args:
        num_tokens: of the text.
        exact_bytes: of its KV in the exact format; `exact_token_bytes`: of one token, windows left out.
        formats: in the order in which they were asked for.
        layers: what each layer alone loses; empty where nobody asked.
    """

    model: str
    num_tokens: int
    num_replayed: int
    exact_bytes: int
    exact_token_bytes: float
    formats: tuple[FormatLoss, ...]
    layers: tuple[LayerLoss, ...] = ()
