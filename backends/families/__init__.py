"""Model families. Each module here offers a `FAMILY` object (see backends/family.py); nothing else names it."""
