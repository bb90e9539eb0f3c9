"""See bench/peers/models.py."""

from bench.peers.models import UnbatchedCodec as TritonPythonModel  # noqa: F401 - Triton looks for this name
