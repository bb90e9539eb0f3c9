"""Step 1: sentences to be read aloud, from public-domain and freely licensed texts.

    python -m voices.wren.training.texts WORK

Writes WORK/sentences-00.txt and so on. Reads what these Debian packages install: wordnet-base,
dict-jargon, dict-devil, sword-text-web and diatheke. A source that is not installed is left out, with a
warning.
"""

from __future__ import annotations

import argparse
import gzip
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

WORDNET = Path("/usr/share/wordnet")
DICTIONARIES = Path("/usr/share/dictd")
SHARD_SENTENCES = 4800
# How many sentences of each source are read.
QUOTA = {
    "wordnet examples": 5000,
    "wordnet glosses": 3200,
    "jargon file": 3500,
    "devil's dictionary": 1500,
    "world english bible": 2200,
    "templates": 1800,
    "random words": 900,
    "single words": 500,
}
NAMES = (
    "Anna Ben Carla David Emma Frank Grace Henry Irene Jack Kate Liam Maria Noah Olivia Peter Quinn Rachel Sam "
    "Tina Victor Wendy Yusuf Zoe"
)
THINGS = (
    "meeting package order train flight report invoice appointment message update server password account weather "
    "station battery ticket project doctor library restaurant kitchen garden computer window camera phone calendar "
    "email file folder music player coffee water bridge airport hotel"
)
QUALITIES = (
    "new red large small broken quiet bright early late useful strange simple good bad important public private "
    "local fast slow"
)
MONTHS = "January February March April May June July August September October November December"
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday"
PLACES = (
    "London Paris Berlin Tokyo Chicago Boston Seattle Madrid Rome Sydney Toronto Dublin Texas California India "
    "Canada"
)
# {name}, {thing}, ... are drawn from the lists above, {2-59} from that range of numbers.
TEMPLATES = (
    "Hello {name}, how are you today?",
    "Your {thing} is {quality}, and it will be ready in {2-59} minutes.",
    "The {thing} is on {day}, {month} {1-31}.",
    "Please call {name} about the {quality} {thing}.",
    "It costs {2-99} dollars and {1-99} cents.",
    "Would you like to hear about the {thing} in {place}?",
    "Sorry, I could not find the {thing}.",
    "I can help you with the {thing}, the {thing}, or the {thing}.",
    "In {1700-2030}, {name} moved from {place} to {place}.",
    "Turn left at the {thing}, then go straight for {2-900} meters.",
    "The answer is {0-1000}.",
    "That is a {quality} idea, {name}!",
    "Yes, of course.",
    "What time does the {thing} close on {day}?",
    "The temperature is {0-40} degrees in {place}.",
    "Thank you for waiting, {name}. Your {thing} has arrived.",
    "Number {0-9}, {0-9}, {0-9}, {0-9}.",
    "{name} said that the {thing} was {quality}, but {name} did not agree.",
    "Let me check the {thing} for you.",
    "Okay, I will do that now.",
    "At {1-12}:{10-59}, we will open the {quality} {thing}.",
    "Do not forget the {thing}; it is very {quality}.",
    "{2-99} percent of the {thing}s were {quality}.",
)


def clean(text: str) -> str:
    """Plain quotes and dashes, no brackets or markup."""
    text = re.sub("[“”]", '"', text)
    text = re.sub("[‘’]", "'", text)
    text = re.sub("—|--", ", ", text)
    text = re.sub(r'[{}_*\[\]()"<>|~=^\\]', " ", text)
    text = re.sub(r"\s+", " ", text).strip()
    return re.sub(r"\s+([,.;:?!])", r"\1", text).strip("' ,;:-")


def is_fit(text: str) -> bool:
    """Whether flite can be trusted to read it: 12 to 150 plain characters, few digits, no addresses."""
    if not 12 <= len(text) <= 150 or len(text.split()) < 3:
        return False
    if re.search(r"[^A-Za-z0-9 ,.;:?!'$%&-]|\.\.|www", text):
        return False
    return len(re.findall(r"[A-Z]{2,}", text)) <= 1 and sum(map(str.isdigit, text)) <= 8


def finish(text: str) -> str:
    """A capital at the beginning, a full stop at the end."""
    text = text[0].upper() + text[1:]
    return text if text[-1] in ".?!" else text + "."


def fit_sentences(text: str) -> Iterator[str]:
    """Fit sentences of running text."""
    for sentence in re.split(r"(?<=[.?!])\s+(?=[A-Z\"'])", re.sub(r"\s+", " ", text)):
        cleaned = clean(sentence)
        if is_fit(cleaned):
            yield finish(cleaned)


def _wordnet_lines(kind: str) -> Iterator[str]:
    for part in ("noun", "verb", "adj", "adv"):
        with (WORDNET / f"{kind}.{part}").open(errors="ignore") as lines:
            yield from (line for line in lines if not line.startswith(" "))


def wordnet_examples(_: random.Random) -> Iterator[str]:
    for line in _wordnet_lines("data"):
        for quoted in re.findall(r'"([^"]+)"', line.partition(" | ")[2]):
            example = clean(quoted.split(" - ")[0].split("; ")[0])
            if is_fit(example):
                yield finish(example)


def wordnet_glosses(rng: random.Random) -> Iterator[str]:
    for line in _wordnet_lines("data"):
        gloss = clean(re.sub(r'"[^"]*"', "", line.partition(" | ")[2]).split(";")[0])
        word = line.split()[4].replace("_", " ")
        if is_fit(gloss) and is_fit(f"{word} is {gloss}"):
            yield finish(rng.choice([gloss, gloss, f"{word} is {gloss}", f"{word}, {gloss}"]))


def _dictionary(name: str) -> Iterator[str]:
    with gzip.open(DICTIONARIES / name, "rt", errors="ignore") as file:
        for paragraph in file.read().split("\n\n"):
            yield from fit_sentences(paragraph)


def bible(_: random.Random) -> Iterator[str]:
    command = ["diatheke", "-b", "engWEB2015eb", "-f", "plain", "-k", "Genesis 1 - Revelation 22"]
    for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
        verse = re.match(r"^[\w ]+ \d+:\d+: (.*)", line)
        if verse:
            yield from fit_sentences(verse[1])


def templates(rng: random.Random) -> Iterator[str]:
    words = {
        "name": NAMES.split(),
        "thing": THINGS.split(),
        "quality": QUALITIES.split(),
        "month": MONTHS.split(),
        "day": DAYS.split(),
        "place": PLACES.split(),
    }

    def draw(match: re.Match[str]) -> str:
        if match[1] in words:
            return rng.choice(words[match[1]])
        low, high = match[1].split("-")
        return str(rng.randint(int(low), int(high)))

    for template in rng.choices(TEMPLATES, k=4000):
        yield re.sub(r"\{(.*?)\}", draw, template)


def _wordnet_words() -> list[str]:
    words = (line.split()[0] for line in _wordnet_lines("index"))
    return [word for word in words if re.fullmatch("[a-z]{3,12}", word)]


def random_words(rng: random.Random) -> Iterator[str]:
    words = _wordnet_words()
    for _ in range(3000):
        yield finish(" ".join(rng.choices(words, k=rng.randint(2, 7))))


def single_words(rng: random.Random) -> Iterator[str]:
    for word in rng.choices(_wordnet_words(), k=1200):
        yield finish(word)


SOURCES: dict[str, Callable[[random.Random], Iterator[str]]] = {
    "wordnet examples": wordnet_examples,
    "wordnet glosses": wordnet_glosses,
    "jargon file": lambda _: _dictionary("jargon.dict.dz"),
    "devil's dictionary": lambda _: _dictionary("devil.dict.dz"),
    "world english bible": bible,
    "templates": templates,
    "random words": random_words,
    "single words": single_words,
}


def collect(rng: random.Random) -> list[str]:
    """Sentences of all installed sources, shuffled."""
    chosen = []
    for name, source in SOURCES.items():
        try:
            sentences = list(dict.fromkeys(source(rng)))
        except (FileNotFoundError, subprocess.CalledProcessError) as error:
            print(f"{name}: not available ({error})", file=sys.stderr)
            continue
        rng.shuffle(sentences)
        chosen += sentences[: QUOTA[name]]
        print(f"{name}: {min(len(sentences), QUOTA[name])} of {len(sentences)} sentences")
    rng.shuffle(chosen)
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", type=Path, help="folder of everything that training makes")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    sentences = collect(random.Random(options.seed))
    for shard, begin in enumerate(range(0, len(sentences), SHARD_SENTENCES)):
        path = options.work / f"sentences-{shard:02d}.txt"
        path.write_text("\n".join(sentences[begin : begin + SHARD_SENTENCES]) + "\n")
        print(path)


if __name__ == "__main__":
    main()
