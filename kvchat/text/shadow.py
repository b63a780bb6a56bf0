"""Wording of shadows: the cost of viewing a conversation through one, and refusals."""

from kvchat.engine.api.cache_format import parse_cache_format
from kvchat.engine.api.loss import GaugeReport
from kvchat.engine.api.view import SHADOW
from kvchat.errors import UsageError
from kvchat.session.kv.provenance import origin_of
from kvchat.session.tree import Session
from kvchat.text.figures import bytes_text, plural


def is_shadow(cache_format: str) -> bool:
    """Whether a format stores exact blocks and looks at them through a shadow. Pure.

    Raises:
        ConfigError: there is no such format.
    """
    view = parse_cache_format(cache_format).view
    return view is not None and view.rule == SHADOW


def require_exact_blocks(session: Session) -> None:
    """Refuse a session whose stored KV is not what was computed.

    Raises:
        UsageError: it was converted.
    """
    origin = origin_of(session.namespace)
    if origin is not None:
        raise UsageError(
            f"its KV was converted to {origin.cache_format}, and a shadow is made from exact KV; go back "
            "first: /cache format exact"
        )


def shadow_cost(report: GaugeReport) -> str:
    """Return what a shadow takes beside a conversation's blocks, and what it loses on its answers."""
    (found,) = report.formats
    loss = found.loss
    return (
        f"{bytes_text(report.exact_bytes)} of blocks stay as they are, and up to"
        f" {bytes_text(found.num_bytes - report.exact_bytes)} come beside them; last"
        f" {plural(loss.num_tokens, 'answer token')}: {100 * loss.agreement:.0f} % same,"
        f" divergence {loss.divergence:.2g}"
    )
