"""How Tritone is installed, started, supervised and stopped. The only package that starts anything."""
