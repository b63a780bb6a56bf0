"""The tokens with which decoding begins."""


def following(number: int) -> int:
    """Return the first token behind a prompt in the branch with this number."""
    return 5 + number
