"""A first chunk that depends on how busy the server is."""

from __future__ import annotations


def dynamic_initial_sizes(steady: int) -> tuple[int, ...]:
    """The first-chunk sizes to choose from: powers of two from 2 to the largest below ``steady`` frames.

    The rule is vLLM-Omni's dynamic initial chunk. Empty when ``steady`` is 2 or less.
    """
    return tuple(1 << k for k in range(1, max(1, (steady - 1).bit_length())))


def dynamic_initial_size(load: float, steady: int) -> int:
    """The first chunk's frames at ``load``, the share of slots in use.

    An idle server gives the smallest size for the earliest first packet; a full one the largest, because many
    small codec calls would delay everybody. The range 0..1 is cut into equal parts; a load outside counts as
    the nearest end.

    Raises:
        ValueError: ``steady`` leaves no size to choose from.
    """
    sizes = dynamic_initial_sizes(steady)
    if not sizes:
        raise ValueError(
            f"steady = {steady}: a dynamic initial chunk needs steady chunks of at least 3 frames"
        )
    step = int(min(max(load, 0.0), 1.0) * len(sizes))
    return sizes[min(step, len(sizes) - 1)]
