"""The phone set (CMU US English, as flite uses it) and the six features of a phone that the talker
reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

_NAMES = (
    "pau aa ae ah ao aw ax ay b ch d dh eh er ey f g hh ih iy jh k l m n ng ow oy p r s "
    "sh t th uh uw v w y z zh"
)
PHONES = _NAMES.split()
PHONE_ID = {phone: index for index, phone in enumerate(PHONES)}
PAUSE = "pau"
# How a phrase ends, from the punctuation at its closing pause.
PHRASE_END_ID = {"": 0, ",": 1, ".": 2, "?": 3, "!": 4}
MAX_PAUSE_DISTANCE = 15
# Values that each feature may take, in the order of a feature row.
FEATURE_SIZES = {
    "phone": len(PHONES),
    "stress": 2,
    "word_start": 2,
    "phrase_end": len(PHRASE_END_ID),
    "from_pause": MAX_PAUSE_DISTANCE + 1,
    "to_pause": MAX_PAUSE_DISTANCE + 1,
}


@dataclass(frozen=True)
class Phone:
    """name: one of PHONES. stressed: primary stress. phrase_end: for a pause, the punctuation it stands
    for."""

    name: str
    stressed: bool = False
    word_start: bool = False
    phrase_end: str = ""


def phone_features(phones: Sequence[Phone]) -> torch.Tensor:
    """Feature rows int64 [len(phones), 6], columns as in FEATURE_SIZES.

    The kind of end of a phrase is told to its last MAX_PAUSE_DISTANCE phones; distances are in phones
    from and to the nearest pause, clipped.
    """
    pauses = [phone.name == PAUSE for phone in phones]
    from_pause = _distances(pauses)
    to_pause = _distances(pauses[::-1])[::-1]
    rows: list[list[int]] = []
    end = 0
    for phone, before, after in zip(reversed(phones), reversed(from_pause), reversed(to_pause), strict=True):
        if phone.name == PAUSE:
            end = PHRASE_END_ID[phone.phrase_end]
        shown_end = end if after < MAX_PAUSE_DISTANCE else 0
        rows.append([PHONE_ID[phone.name], phone.stressed, phone.word_start, shown_end, before, after])
    return torch.tensor(rows[::-1], dtype=torch.int64).view(len(rows), len(FEATURE_SIZES))


def _distances(pauses: Sequence[bool]) -> list[int]:
    """Steps since the last pause at each place (or since before the first place)."""
    distances = []
    distance = 0
    for pause in pauses:
        distance = 0 if pause else distance + 1
        distances.append(min(distance, MAX_PAUSE_DISTANCE))
    return distances
