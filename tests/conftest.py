"""Settings for all tests."""

import os

import torch
from hypothesis import settings

# One thread a process, since the servers under test want the other core.
torch.set_num_threads(1)

# Examples are drawn anew on a developer's machine; continuous integration judges the same ones each time.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")
