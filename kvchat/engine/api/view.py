"""Views: formats that keep KV as it was computed and let queries see only a part of it.

`window:1024` sees the first block and the last tokens. The others wait until a long prompt has been read, and
keep of it what scores highest: `knorm:1024`, `keydiff:1024`, `snapkv:1024`, `snapkv:1024:pyramid`.
"""

from dataclasses import dataclass

from kvchat.errors import ConfigError

WINDOW = "window"
SNAPKV = "snapkv"
PRUNING = ("knorm", "keydiff", SNAPKV)
VIEWS = (WINDOW, *PRUNING)
DEFAULT_BUDGET = 1024
MAX_DIGITS = 9
PYRAMID = "pyramid"
NUM_OBSERVED = 32
"""The last tokens of a prompt stay whole, and for `snapkv` it is what they attend to that is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What stays in sight. Its text is read as the same view again.

    Args:
        rule: one of `VIEWS`.
        budget: tokens; of a window the recent ones that each query sees at least, else those that are kept of
            a long prompt.
        is_pyramid: whether deeper layers keep fewer, and earlier ones more.
    """

    rule: str
    budget: int = DEFAULT_BUDGET
    is_pyramid: bool = False

    def __str__(self) -> str:
        return f"{self.rule}:{self.budget}" + (f":{PYRAMID}" if self.is_pyramid else "")


def is_view(text: str) -> bool:
    """Whether a format's text begins with the name of a view. Pure."""
    return text.partition(":")[0].strip() in VIEWS


def parse_view(text: str) -> View:
    """Return the view that a text names.

    Raises:
        ConfigError: it names none; the message says how it is written.
    """
    rule, *options = (part.strip() for part in text.split(":"))
    is_pyramid = options[-1:] == [PYRAMID]
    if is_pyramid:
        options.pop()
    if len(options) > 1 or rule not in VIEWS:
        raise ConfigError(
            f"'{text}' is no cache format; write for instance window:1024 or snapkv:1024:pyramid"
        )
    if is_pyramid and rule != SNAPKV:
        raise ConfigError(
            f"'{text}' is no cache format: only snapkv keeps a pyramid; write snapkv:1024:pyramid"
        )
    view = View(rule=rule, budget=_budget(text, options), is_pyramid=is_pyramid)
    if rule in PRUNING and view.budget <= NUM_OBSERVED:
        raise ConfigError(
            f"cache format '{text}' would keep {view.budget} tokens, and the last {NUM_OBSERVED} of a prompt "
            f"stay in any case; write a larger number, for instance {rule}:{DEFAULT_BUDGET}"
        )
    return view


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
