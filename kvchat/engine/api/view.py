"""Views: formats that keep KV as it was computed and let queries see only a part of it.

`window:1024` sees the first block and the last tokens. Others wait until a long prompt has been read, and
keep of it what scores highest: `knorm:1024`, `keydiff:1024`, `snapkv:1024`, `snapkv:1024:pyramid`. A shadow
keeps all and lets each step choose what it looks at: `shadow:1024` tokens, or `shadow:25%` of the prompt.
"""

from dataclasses import dataclass

from kvchat.errors import ConfigError

WINDOW = "window"
SNAPKV = "snapkv"
PRUNING = ("knorm", "keydiff", SNAPKV)
SHADOW = "shadow"
VIEWS = (WINDOW, *PRUNING, SHADOW)
DEFAULT_BUDGET = 1024
MAX_DIGITS = 9
PYRAMID = "pyramid"
FORCED = "forced"
OFFERED_SHADOW = "shadow:25%"
"""Where a conversation has outgrown the exact cache, and nobody has named another."""
MOST_SHARE = 25
"""A step that looks at a larger share of a context, in percent, gains nothing from a shadow of it."""
NUM_OBSERVED = 32
"""The last tokens of a prompt stay whole, and for `snapkv` it is what they attend to that is kept."""
REACH = 6
"""With it goes what stands so many tokens before and behind: the rest of a name or number that no question
looks at yet. Counts in the names of what is computed then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What stays in sight. Its text is read as the same view again.

    Args:
        rule: one of `VIEWS`.
        budget: tokens; of a window the recent ones that each query sees at least, else those that are kept of
            a long prompt; over a shadow those that each step chooses.
        is_pyramid: whether deeper layers keep fewer, and earlier ones more.
        is_share: whether the budget is a share in percent of the prompt, of all that a step looks at.
        is_forced: whether a shadow is made where nothing is gained by it, too.
    """

    rule: str
    budget: int = DEFAULT_BUDGET
    is_pyramid: bool = False
    is_share: bool = False
    is_forced: bool = False

    def __str__(self) -> str:
        options = (PYRAMID if self.is_pyramid else "", FORCED if self.is_forced else "")
        budget = f"{self.budget}%" if self.is_share else str(self.budget)
        return ":".join((self.rule, budget, *filter(None, options)))


def is_view(text: str) -> bool:
    """Whether a format's text begins with the name of a view. Pure."""
    return text.partition(":")[0].strip() in VIEWS


def parse_view(text: str) -> View:
    """Return the view that a text names.

    Raises:
        ConfigError: it names none; the message says how it is written.
    """
    rule, *options = (part.strip() for part in text.split(":"))
    is_pyramid, is_forced = (options[-1:] == [name] for name in (PYRAMID, FORCED))
    if is_pyramid or is_forced:
        options.pop()
    if len(options) > 1 or rule not in VIEWS:
        raise ConfigError(
            f"'{text}' is no cache format; write for instance window:1024 or snapkv:1024:pyramid"
        )
    if is_pyramid and rule != SNAPKV:
        raise ConfigError(
            f"'{text}' is no cache format: only snapkv keeps a pyramid; write snapkv:1024:pyramid"
        )
    if is_forced and rule != SHADOW:
        raise ConfigError(f"'{text}' is no cache format: only a shadow is forced; write shadow:1024:forced")
    is_share = rule == SHADOW and options[:1] != [] and options[0].endswith("%")
    view = View(
        rule=rule,
        budget=_budget(text, [options[0][:-1]] if is_share else options),
        is_pyramid=is_pyramid,
        is_share=is_share,
        is_forced=is_forced,
    )
    _require_budget(text, view)
    return view


def _require_budget(text: str, view: View) -> None:
    if view.rule in PRUNING and view.budget <= NUM_OBSERVED:
        raise ConfigError(
            f"cache format '{text}' would keep {view.budget} tokens, and the last {NUM_OBSERVED} of a prompt "
            f"stay in any case; write a larger number, for instance {view.rule}:{DEFAULT_BUDGET}"
        )
    if view.is_share and view.budget > (100 if view.is_forced else MOST_SHARE):
        raise ConfigError(
            f"cache format '{text}': a step that looks at {view.budget} % of a context gains nothing from a "
            f"shadow of it; write {SHADOW}:{MOST_SHARE}% or less, or a number of tokens"
        )


def require_steps(view: View, num_tokens: int) -> None:
    """Refuse a view that looks at more of a prompt at once than one step computes.

    Raises:
        ConfigError: it does.
    """
    if view.rule == SNAPKV and num_tokens < NUM_OBSERVED:
        raise ConfigError(
            f"cache format '{view}' looks at the last {NUM_OBSERVED} tokens of a prompt in one step; "
            f"max_batch_tokens must be at least that, not {num_tokens}"
        )


def _budget(text: str, options: list[str]) -> int:
    if not options:
        return DEFAULT_BUDGET
    number = options[0]
    if not (number.isascii() and number.isdigit() and len(number) <= MAX_DIGITS and int(number)):
        raise ConfigError(
            f"cache format '{text[:40]}': the number of tokens must be a whole number above 0, of at most"
            f" {MAX_DIGITS} digits"
        )
    return int(number)
