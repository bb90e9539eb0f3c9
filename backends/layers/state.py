"""State of streaming layers: tensors with one row a slot, read at a call's start and written at its end."""

from __future__ import annotations

import torch
from torch import nn


class SlotCall:
    """The rows of one call of a streaming network.

    Layers read their state through it and hand over what the state shall become; `commit` writes everything
    at once. So a call that raises leaves all state as it was and may be repeated.
    """

    def __init__(self, slots: torch.Tensor) -> None:
        """slots: int64 [B]. Rows may share the null slot."""
        self.slots = slots
        self._writes: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []

    def read(self, state: torch.Tensor) -> torch.Tensor:
        """Rows [B, ...] of a state [slots + 1, ...], copied."""
        return state.index_select(0, self.slots)

    def write(self, state: torch.Tensor, rows: torch.Tensor) -> None:
        """The state's rows of this call become `rows` [B, ...] at `commit`."""
        self._writes.append((state, self.slots, rows))

    def write_at(self, state: torch.Tensor, index: torch.Tensor, rows: torch.Tensor) -> None:
        """`state[index]` becomes `rows` along the first dimension at `commit`. index: int64 [n]."""
        self._writes.append((state, index, rows))

    def commit(self) -> None:
        for state, index, rows in self._writes:
            state.index_copy_(0, index, rows)
        self._writes.clear()


class StreamingModule(nn.Module):
    """A layer with state. Subclasses name its shapes; the functions below work on whole networks of them.

    `forward` takes the SlotCall as its last argument; None stands for a whole utterance, from empty state
    and without keeping any.
    """

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each state tensor, without the slot dimension."""
        raise NotImplementedError

    def state_dtype(self, name: str, weights: torch.dtype) -> torch.dtype:
        """Dtype of a state tensor; that of the weights unless said otherwise."""
        return weights

    def allocate_state(self, slots: int, device: torch.device, dtype: torch.dtype) -> None:
        # Plain attributes, not buffers: state is no part of a checkpoint.
        self.state = {
            name: torch.zeros(slots + 1, *shape, device=device, dtype=self.state_dtype(name, dtype))
            for name, shape in self.state_shapes().items()
        }

    def recall(self, name: str, x: torch.Tensor, call: SlotCall | None) -> torch.Tensor:
        """Rows [B, ...] of a state tensor; zeros like `x` in dtype and batch for a whole utterance."""
        if call is not None:
            return call.read(self.state[name])
        return x.new_zeros(x.shape[0], *self.state_shapes()[name])


def _streaming(network: nn.Module) -> list[StreamingModule]:
    return [m for m in network.modules() if isinstance(m, StreamingModule)]


def allocate(network: nn.Module, slots: int) -> None:
    """Make the state of every streaming layer in `network` for `slots` slots and the null slot."""
    weights = next(network.parameters())
    for module in _streaming(network):
        module.allocate_state(slots, weights.device, weights.dtype)


def reset(network: nn.Module, slots: torch.Tensor) -> None:
    """Empty the state of slots [B] in every streaming layer."""
    for module in _streaming(network):
        for tensor in module.state.values():
            tensor.index_fill_(0, slots, 0)


def slot_bytes(network: nn.Module) -> int:
    """Bytes of state that one slot takes in all streaming layers."""
    return sum(
        tensor[0].numel() * tensor.element_size()
        for module in _streaming(network)
        for tensor in module.state.values()
    )
