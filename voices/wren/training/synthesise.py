"""Step 2: the sentences read aloud by flite, and its lexicon.

    python -m voices.wren.training.synthesise WORK

For every WORK/sentences-NN.txt writes WORK/speech-NN.pcm, .f0 and .tsv (see synthesise.c), several at
once. Then writes WORK/lexicon.tsv.gz and WORK/lts.txt.gz. Needs gcc and the Debian package flite1-dev.
"""

from __future__ import annotations

import argparse
import gzip
import os
import re
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
LIBRARIES = ("flite_cmu_us_slt", "flite_usenglish", "flite_cmulex", "flite", "m")
_VOWELS = "aa ae ah ao aw ax ay eh er ey ih iy ow oy uh uw"
VOWELS = frozenset(_VOWELS.split())
_PRONOUNS = "i you he she it we they that there who what how where when why this here"
_AUXILIARIES = "do does did is are was were has have had would could should ca wo must need ai might"


def build(name: str, work: Path, flags: Sequence[str] = ()) -> Path:
    """Compile NAME.c of this folder to WORK/NAME. flags: for gcc, where flite is not installed in the
    system."""
    program = work / name
    sources = [str(HERE / f"{name}.c"), "-I/usr/include/flite"]
    command = ["gcc", "-O2", *sources, *flags, *(f"-l{library}" for library in LIBRARIES), "-o", str(program)]
    subprocess.run(command, check=True)
    return program.resolve()


def speak(program: Path, sentences: Path) -> Path:
    """Read a shard aloud; returns the prefix of what it wrote."""
    prefix = sentences.with_name(sentences.stem.replace("sentences", "speech"))
    with sentences.open("rb") as lines:
        subprocess.run([program, prefix], stdin=lines, check=True)
    return prefix


def contractions() -> list[str]:
    """I'm, don't, ...: words that flite takes apart before it looks them up."""
    with_pronouns = [
        f"{word}'{end}" for word in _PRONOUNS.split() for end in ("m", "ll", "ve", "d", "re", "s")
    ]
    with_not = [f"{word}n't" for word in _AUXILIARIES.split()]
    return [*with_pronouns, *with_not, "let's", "o'clock", "ma'am", "y'all", "goin'"]


def spoken_contractions(program: Path, work: Path) -> Iterator[str]:
    """Lexicon lines of the contractions, from what flite says for them."""
    listing = work / "sentences-contractions.txt"
    listing.write_text("".join(f"{word}.\n" for word in contractions()))
    table = speak(program, listing).with_suffix(".tsv").read_text()
    for line in table.splitlines():
        _, _, text, phones = line.split("\t")
        sounds = []
        for phone in phones.split():
            name, _, stress, *_ = phone.split("|")
            if name != "pau":
                sounds.append(name + (stress if name in VOWELS else ""))
        yield f"{text.strip('. ')}\t1\t{' '.join(sounds)}"


def words_of(texts: Sequence[Path]) -> list[str]:
    found: set[str] = set()
    for path in texts:
        found.update(re.findall(r"[a-z]+(?:'[a-z]+)*", path.read_text(errors="ignore").lower()))
    return sorted(found)


def export_lexicon(work: Path, program: Path, speaker: Path, words: Sequence[str]) -> None:
    """Write lexicon.tsv.gz (words that the rules would get wrong) and lts.txt.gz (the rules)."""
    listing = subprocess.run(
        [program], input="\n".join(words) + "\n", capture_output=True, text=True, check=True
    ).stdout
    listed = [line for line in listing.splitlines() if line.split("\t")[1] == "1"]
    lines = sorted(dict.fromkeys([*listed, *spoken_contractions(speaker, work)]))
    with gzip.open(work / "lexicon.tsv.gz", "wt") as file:
        file.write("\n".join(lines) + "\n")
    rules = subprocess.run([program, "--rules"], capture_output=True, check=True).stdout
    with gzip.open(work / "lts.txt.gz", "wb") as file:
        file.write(rules)
    print(f"lexicon: {len(lines)} of {len(words)} words")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", type=Path)
    parser.add_argument(
        "--words",
        type=Path,
        nargs="*",
        default=[],
        help="further texts or word lists whose words are looked up for the lexicon (/usr/share/wordnet/index.noun)",
    )
    parser.add_argument(
        "--gcc", default="", help="further flags for gcc, where flite is elsewhere: --gcc='-I... -L...'"
    )
    options = parser.parse_args()
    speaker = build("synthesise", options.work, shlex.split(options.gcc))
    shards = sorted(options.work.glob("sentences-[0-9]*.txt"))
    if not shards:
        parser.error(f"{options.work} holds no sentences-NN.txt; run the step texts first")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for prefix in pool.map(lambda shard: speak(speaker, shard), shards):
            print(f"{prefix}: {prefix.with_suffix('.pcm').stat().st_size / 32000 / 3600:.2f} hours")
    lexicon = build("lexicon", options.work, shlex.split(options.gcc))
    export_lexicon(options.work, lexicon, speaker, words_of([*shards, *options.words]))


if __name__ == "__main__":
    main()
