"""Argument checks shared by the policies."""

from __future__ import annotations

import operator
from collections.abc import Set
from typing import SupportsIndex


def whole_number(name: str, value: SupportsIndex, minimum: int) -> int:
    """``value`` as an int of at least ``minimum``.

    Raises:
        ValueError: not a whole number (booleans and floats are not), or below ``minimum``.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < minimum:
        raise ValueError(f"{name} = {value!r}: must be a whole number of at least {minimum}")
    return number


def consumer_walks(value: bool | Set[str]) -> bool | frozenset[str]:
    """A ``continue_after_done`` argument: yes, no, or only in a non-empty set of consumer walks.

    Raises:
        ValueError: anything else.
    """
    if isinstance(value, bool):
        return value
    if isinstance(value, Set) and value and all(isinstance(walk, str) for walk in value):
        return frozenset(value)
    raise ValueError(f"continue_after_done = {value!r}: must be true, false or a non-empty set of walk names")
