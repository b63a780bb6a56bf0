"""Wording of cache miss reasons."""

from kvchat.session.cache_miss import Explanation, MissReason
from kvchat.text.figures import count_text, guesses_text, plural
from kvchat.text.fit_text import one_line

_REASONS = {
    MissReason.NONE: "Only what was new to it was computed.",
    MissReason.STARTED_OVER: (
        "The conversation was rendered anew: its tokens were missing, damaged, or of another tokenizer."
    ),
    MissReason.DIFFERENT: (
        "Something earlier was changed or left out; what follows it had never been computed."
    ),
    MissReason.MODEL: "Another model, or other weights, had answered before; blocks serve one model alone.",
    MissReason.EVICTED: (
        "It had been computed before, but no tier had it any more: it was given up for room, removed, or"
        " never saved."
    ),
    MissReason.FASTER: "It was stored, but computing it again was faster than loading it.",
    MissReason.NO_STATE: (
        "Its keys and values were cached, but no state of the recurrent layers behind them: what follows the"
        " last one was computed again."
    ),
    MissReason.SYSTEM: (
        "Nothing that was computed before begins like this: the system prompt is another, or what the"
        " template writes before the first message."
    ),
    MissReason.REWRITTEN: (
        "The conversation was rendered anew, and the model's template writes what was said in another way."
    ),
    MissReason.NOT_KEPT: (
        "It had been computed before, but was not kept, or was faster to compute than to load."
    ),
}


def why_words(explanation: Explanation) -> str:
    """Return what was reused and computed, the culprit, and the first token on which the two sides differ."""
    miss = explanation.miss
    new = f", {count_text(miss.new_tokens)} of them new" if miss.new_tokens else ""
    lines = [
        f"reused    {count_text(miss.cached_tokens)} of {plural(miss.prompt_tokens, 'token')}",
        f"computed  {plural(miss.computed_tokens, 'token')}{new}",
        "",
        _REASONS[miss.culprit],
    ]
    if miss.drafted_tokens:
        lines.insert(2, f"answer    {guesses_text(miss.accepted_tokens, miss.drafted_tokens)}")
    shared = explanation.shared
    if miss.here:
        lines += ["", f"at token  {count_text(miss.at)}", f"here      {_quoted(shared, explanation.here)}"]
    if miss.there:
        lines.append(f"before    {_quoted(shared, explanation.there)}")
    return "\n".join(lines)


def _quoted(shared: str, side: str) -> str:
    """Return one side behind what both share, with a mark where they part."""
    return f"“… {one_line(f'{shared}▸{side}')} …”"
