"""The operators' page names every key, and only keys that exist."""

import re
from pathlib import Path

from chunk_policies.schedule import VOICE_KEYS

PAGE = Path(__file__).parents[2] / "docs" / "chunk_policies.md"


def test_the_table_of_keys_is_complete():
    assert sorted(re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)) == sorted(VOICE_KEYS)
