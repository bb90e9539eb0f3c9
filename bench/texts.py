"""Texts to speak."""

from __future__ import annotations

import random
from collections.abc import Sequence

SENTENCES = (
    "The kettle is on, and the tea will be ready in a minute.",
    "Please hold the line; somebody will be with you shortly.",
    "Your parcel left the warehouse this morning and should arrive on Thursday before noon.",
    "Turn left after the bridge, then follow the river until you see the old mill.",
    "It rained all night, but by breakfast the sky was clear and the streets were almost dry.",
    "We have moved your appointment from ten o'clock to half past eleven. Does that suit you?",
    "Water boils at a lower temperature on a mountain, because the air presses less on it.",
    "The museum is closed on Mondays. On other days it opens at nine and closes at six.",
    "She read the letter twice, folded it carefully, and put it back into the drawer.",
    "There are three trains an hour from platform two, and the journey takes forty minutes.",
    "Bread needs flour, water, salt and time. Most people forget the time.",
    "If the light is green, the battery is full. If it blinks, leave the device on the charger.",
    "The first bus leaves at five in the morning, long before the shops open their doors.",
    "Thank you for calling. The office is closed now, but you can leave a message after the tone.",
    "A good map shows what is there; a better one leaves out what you do not need.",
    "He planted apple trees along the fence, and ten years later the whole village ate the fruit.",
)


def sentences(count: int) -> list[str]:
    """English sentences of one to two lines, in turn."""
    return [SENTENCES[i % len(SENTENCES)] for i in range(count)]


def texts_of_length(lengths: Sequence[int]) -> list[str]:
    """Texts of exactly so many characters, made of the sentences; none begins or ends with white space."""
    source = " ".join(SENTENCES)
    texts = []
    for number, length in enumerate(lengths):
        begin = source.index(SENTENCES[number % len(SENTENCES)])
        text = (source[begin:] + (" " + source) * (length // len(source) + 1))[:length]
        texts.append(text[:-1] + "." if text != text.rstrip() else text)
    return texts


def spread_lengths(count: int, mean: float, spread: float, seed: int) -> list[int]:
    """Text lengths, log-normal around a mean (spread: sigma of the logarithm); the same for the same seed."""
    source = random.Random(seed)
    return [max(1, round(mean * source.lognormvariate(-(spread**2) / 2, spread))) for _ in range(count)]
