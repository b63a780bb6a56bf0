"""What a shadow of a prompt should take of a device, from its settings alone."""

from kvchat.engine.formats.shadow.settings import LayerShape, ShadowSettings


def expected_device_bytes(settings: ShadowSettings, shape: LayerShape, num_tokens: int) -> int:
    """Return what a layer keeps on the device of a prompt of `num_tokens`, keys on one basis.

    Projections, the basis, landmarks, compressed chunks that every step sees, the working set, the tail.
    """
    size, rank = settings.chunk_size, settings.rank_for(shape.width)
    num_compressed = num_tokens // size - settings.num_local
    tail_len = num_tokens - num_compressed * size
    low_rank = (num_compressed * size + shape.width) * rank * shape.element_size
    landmarks = num_compressed * shape.width * shape.element_size
    exact_len = settings.num_always * size + settings.budget + tail_len
    return low_rank + landmarks + exact_len * shape.token_bytes
