"""How wren was trained: text, speech, codec, talker, export. See README.md."""
