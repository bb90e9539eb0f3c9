"""See bench/peers/models.py."""

from bench.peers.models import ThreadPerStream as TritonPythonModel  # noqa: F401 - Triton looks for this name
