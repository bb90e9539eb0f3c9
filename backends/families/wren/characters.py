"""Any Unicode text to plain letters, digits and signs, in time linear in its length."""

from __future__ import annotations

import unicodedata

_MEANING_LOST_BY_FOLDING = {
    "²": "^2",
    "³": "^3",
    "¼": " 1/4",
    "½": " 1/2",
    "¾": " 3/4",
    "⅓": " 1/3",
    "⅔": " 2/3",
    "⅛": " 1/8",
    "⅜": " 3/8",
    "⅝": " 5/8",
    "⅞": " 7/8",
    "™": "",
    "℠": "",
    "ª": "a",
    "º": "°",
}
_PLAIN = {
    **dict.fromkeys("‘’‚‛ʼ′`´", "'"),
    **dict.fromkeys("“”„‟″«»", '"'),
    **dict.fromkeys("—―⸺⸻〜～", ", "),
    **dict.fromkeys("‐‑‒–−﹣－", "-"),
    **dict.fromkeys("،、，·•‣▪◦", ", "),
    **dict.fromkeys("؛；", ";"),
    **dict.fromkeys("。｡।۔", ". "),
    "؟": "?",
    "⁄": "/",
    "ß": "ss",
    "æ": "ae",
    "Æ": "Ae",
    "œ": "oe",
    "Œ": "Oe",
    "ø": "o",
    "Ø": "O",
    "đ": "d",
    "Đ": "D",
    "ð": "th",
    "Ð": "Th",
    "þ": "th",
    "Þ": "Th",
    "ł": "l",
    "Ł": "L",
    "ı": "i",
    "μ": "µ",
}
_FIRST = str.maketrans(_MEANING_LOST_BY_FOLDING)
_LAST = str.maketrans(_PLAIN)
_LINE_BREAKS = "\n\r\v\f\x85\u2028\u2029"


def fold(text: str) -> str:
    """Compatibility forms, accents, invisible characters and typographic signs made plain.

    Line breaks become \\n, other control characters spaces; characters that are only format
    (zero-width, direction marks, soft hyphens, emoji selectors) vanish. Scripts that this voice cannot
    read are left for the tokens.
    """
    if text.isascii() and text.isprintable():
        return text
    decomposed = unicodedata.normalize("NFKD", text.translate(_FIRST))
    kept = []
    for character in decomposed:
        category = unicodedata.category(character)
        if character in _LINE_BREAKS:
            kept.append("\n")
        elif category in ("Cc", "Zs", "Zl", "Zp"):
            kept.append(" ")
        elif category not in ("Mn", "Me", "Cf", "Cs", "Co", "Cn"):
            kept.append(character)
    return "".join(kept).translate(_LAST)
