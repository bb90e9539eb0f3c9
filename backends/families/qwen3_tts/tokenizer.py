"""Qwen's byte-level BPE from the files of a checkpoint, through the `tokenizers` library alone."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

from backends.voice import VoiceError

# How Qwen2's tokenizer cuts text into words before merging (Qwen2Converter in transformers).
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)

_HELD_TOKENS = 3
_FIRST_SPACELESS = "\u0e00"  # Thai; the East Asian scripts follow


def _build(folder: Path) -> Tokenizer:
    """From vocab.json, merges.txt and tokenizer_config.json, which the published folders have."""
    for name in ("vocab.json", "merges.txt", "tokenizer_config.json"):
        if not (folder / name).is_file():
            raise VoiceError(
                f"{folder / name}: is missing; a checkpoint needs tokenizer.json, or vocab.json, merges.txt "
                "and tokenizer_config.json"
            )
    try:
        vocabulary, merges = BPE.read_file(str(folder / "vocab.json"), str(folder / "merges.txt"))
        added = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))[
            "added_tokens_decoder"
        ]
    except Exception as error:  # tokenizers raises plain Exception
        raise VoiceError(f"{folder}: the tokenizer's files are malformed: {error!r}") from error
    tokenizer = Tokenizer(
        BPE(
            vocab=vocabulary,
            merges=merges,
            dropout=None,
            unk_token=None,
            continuing_subword_prefix="",
            end_of_word_suffix="",
            fuse_unk=False,
            byte_fallback=False,
        )
    )
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    for expected, token in sorted((int(i), t) for i, t in added.items()):
        tokenizer.add_special_tokens(
            [
                AddedToken(
                    token["content"],
                    single_word=token.get("single_word", False),
                    lstrip=token.get("lstrip", False),
                    rstrip=token.get("rstrip", False),
                    normalized=token.get("normalized", False),
                    special=True,
                )
            ]
        )
        if (actual := tokenizer.token_to_id(token["content"])) != expected:
            raise VoiceError(
                f"{folder}: {token['content']} is {expected} in tokenizer_config.json, but {actual} after "
                "vocab.json; the two files are not of one checkpoint"
            )
    return tokenizer


class TextTokenizer:
    """Text to ids. Markers such as "<|im_end|>" inside a user's text are plain text, never control tokens."""

    def __init__(self, folder: Path) -> None:
        """Raises VoiceError if the folder has no usable tokenizer files."""
        file = folder / "tokenizer.json"
        if file.is_file():
            try:
                self._tokenizer = Tokenizer.from_file(str(file))
            except Exception as error:  # tokenizers raises plain Exception
                raise VoiceError(f"{file}: is not a tokenizer: {error!r}") from error
        else:
            self._tokenizer = _build(folder)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, nothing added."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def settled(self, text: str) -> int:
        """How many leading characters of `text` keep their ids whatever follows: all but the last word.

        In scripts without spaces (Chinese, Japanese, Thai), where a "word" is a whole clause, only its last
        three tokens are held back; a merge across such a cut is missed, which splits a word differently but
        loses no letter.
        """
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        words = encoding.word_ids
        if not words:
            return 0
        begin = words.index(words[-1])
        start = int(encoding.offsets[begin][0])
        if len(words) - begin > _HELD_TOKENS and any(c >= _FIRST_SPACELESS for c in text[start:]):
            start = int(encoding.offsets[-_HELD_TOKENS][0])
        return start

    def id_of(self, token: str) -> int | None:
        """The id of a token by its exact text, or None."""
        return self._tokenizer.token_to_id(token)
