"""How to start the peers."""

from __future__ import annotations

from pathlib import Path

from bench.server import ServerPlan

REPOSITORIES = Path(__file__).parent
FRAME_BLS = ServerPlan("paced-zero", repository=REPOSITORIES / "frame_bls")
POLLING = ServerPlan("paced-zero", repository=REPOSITORIES / "polling")
