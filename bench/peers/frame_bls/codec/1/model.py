"""See bench/peers/models.py."""

from bench.peers.models import ChunkCodec as TritonPythonModel  # noqa: F401 - Triton looks for this name
