"""Pyramid budget: deeper layers keep fewer tokens.

Source: PyramidKV, arXiv 2406.02069.
"""

BETA = 20
"""The last layer keeps about this part of the mean."""


def pyramid_budgets(*, mean: int, most: int, num_layers: int) -> tuple[int, ...]:
    """Return the tokens that each layer keeps, the first layer's first.

    Args:
        mean: of all layers, about.
        most: as many there are.
    """
    assert 0 < mean < most
    least = mean // BETA
    first = 2 * mean - least
    if first >= most:
        first, least = most, 2 * mean - most
    step = (first - least) // max(1, num_layers - 1)
    return tuple(first - number * step for number in range(num_layers))
