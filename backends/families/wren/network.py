"""The talker's trained network: everything that has weights, put together."""

from __future__ import annotations

from torch import nn

from backends.families.wren.backbone import Backbone
from backends.families.wren.depth import Depth
from backends.families.wren.durations import PATTERNS
from backends.families.wren.phone_encoder import PhoneEncoder
from backends.families.wren.step_input import BACKBONE_WIDTH, StepInput


class TalkerNetwork(nn.Module):
    """alignment: from a hidden state to logits of which ticks of the next frame end a phone."""

    def __init__(self) -> None:
        super().__init__()
        self.phone_encoder = PhoneEncoder()
        self.step_input = StepInput()
        self.backbone = Backbone()
        self.alignment = nn.Sequential(
            nn.Linear(BACKBONE_WIDTH, BACKBONE_WIDTH), nn.GELU(), nn.Linear(BACKBONE_WIDTH, PATTERNS)
        )
        self.depth = Depth()
