"""Neural building blocks that model families share: a transformer over slots and streaming convolutions."""
