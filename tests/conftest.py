"""Settings for all tests: one thread a process, since the servers under test want the other core."""

import torch

torch.set_num_threads(1)
