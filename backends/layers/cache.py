"""Key/value caches of a transformer: over slots (full length or a ring of the last positions), or for one
call."""

from __future__ import annotations

from typing import Protocol

import torch

from backends.layers.state import SlotCall


class CacheView(Protocol):
    """A cache as the layers of one call see it. mask: bool [B or 1, 1, T, L], True where a query may look."""

    mask: torch.Tensor | None

    def update(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add keys and values [B, T, kv_heads, head_dim] of a layer; returns all that may be seen, [B, L,
        ...]."""


class LocalCache:
    """Keys and values of one call only: depth decoders inside a frame, or a whole utterance at once.

    window: queries see that many positions, themselves included; None is all.
    """

    def __init__(self, layers: int, window: int | None = None) -> None:
        self.mask: torch.Tensor | None = None
        self._window = window
        self._kept: list[tuple[torch.Tensor, torch.Tensor] | None] = [None] * layers

    def update(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        kept = self._kept[layer]
        if kept is not None:
            keys, values = torch.cat([kept[0], keys], dim=1), torch.cat([kept[1], values], dim=1)
        self._kept[layer] = (keys, values)
        return keys, values

    def grow(self, count: int, device: torch.device) -> LocalCache:
        """Prepare the mask for `count` further positions; call it before each pass through the layers."""
        before = 0 if self._kept[0] is None else self._kept[0][0].shape[1]
        if count == 1 and self._window is None:
            self.mask = None
            return self
        query = torch.arange(before, before + count, device=device)[:, None]
        key = torch.arange(before + count, device=device)
        mask = key <= query
        if self._window is not None:
            mask &= query - key < self._window
        self.mask = mask[None, None]
        return self


class SlotCache:
    """Keys and values of all slots: [layers, slots + 1, length, kv_heads, head_dim] each.

    length: positions a slot; with `ring` the last `window` positions instead, in turn.
    window: sliding window, None is all before.
    """

    def __init__(
        self,
        *,
        layers: int,
        slots: int,
        length: int,
        kv_heads: int,
        head_dim: int,
        window: int | None = None,
        ring: bool = False,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if ring and window is None:
            raise ValueError("a ring cache needs a window; give one or turn ring off")
        self.length = window if ring and window is not None else length
        self.window = window
        self.ring = ring
        self.null = slots
        shape = (layers, slots + 1, self.length, kv_heads, head_dim)
        self.keys = torch.zeros(shape, device=device, dtype=dtype)
        self.values = torch.zeros(shape, device=device, dtype=dtype)

    def slot_bytes(self) -> int:
        return 2 * self.keys[:, 0].numel() * self.keys.element_size()

    def reset(self, slots: torch.Tensor, where: torch.Tensor | None = None) -> None:
        """Zero the slots [B] (those `where` is true). Masked positions are never read into a result, but a
        NaN left
        there by a stream that failed would be: zero times NaN is NaN."""
        if where is not None:
            slots = torch.where(where, slots, self.null)
        self.keys.index_fill_(1, slots, 0)
        self.values.index_fill_(1, slots, 0)

    def view(
        self,
        slots: torch.Tensor,
        positions: torch.Tensor,
        valid: torch.Tensor | None = None,
        length: int | None = None,
        call: SlotCall | None = None,
    ) -> SlotCacheView | RingCacheView:
        """The cache for one call.

        slots: int64 [B]. positions: int64 [B, T], consecutive in a row. valid: bool [B, T], False for
            padding at the end of rows. length: positions that attention reads, above every position of the
            call; None is all of them (of no meaning for a ring). call: defer writes to its `commit` (ring
            only).
        """
        if self.ring:
            return RingCacheView(self, slots, positions, valid, call)
        return SlotCacheView(self, slots, positions, valid, length or self.length)

    def _targets(self, slots: torch.Tensor, index: torch.Tensor, keep: torch.Tensor | None) -> torch.Tensor:
        """Flat row numbers of (slot, index) pairs; those not kept go to the null slot. int64 [B * T]."""
        rows = slots[:, None]
        if keep is not None:
            rows = torch.where(keep, rows, self.null)
        return (rows * self.length + index).flatten()

    def _flat(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.keys[layer].flatten(0, 1), self.values[layer].flatten(0, 1)


class SlotCacheView:
    """Position p of a slot lies at index p. New entries are written first, then read with the others."""

    def __init__(
        self,
        cache: SlotCache,
        slots: torch.Tensor,
        positions: torch.Tensor,
        valid: torch.Tensor | None,
        length: int,
    ) -> None:
        self._cache = cache
        self._slots = slots
        self._length = length
        # The null slot's position grows for as long as the server runs.
        self._targets = cache._targets(slots, positions.clamp(max=cache.length - 1), valid)
        age = positions[:, :, None] - torch.arange(length, device=slots.device)
        mask = age >= 0
        if cache.window is not None:
            mask &= age < cache.window
        self.mask: torch.Tensor | None = mask[:, None]

    def update(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        cache = self._cache
        flat_keys, flat_values = cache._flat(layer)
        flat_keys.index_copy_(0, self._targets, keys.flatten(0, 1))
        flat_values.index_copy_(0, self._targets, values.flatten(0, 1))
        return (
            cache.keys[layer, :, : self._length].index_select(0, self._slots),
            cache.values[layer, :, : self._length].index_select(0, self._slots),
        )


class RingCacheView:
    """Position p of a slot lies at index p modulo the window.

    New entries are attended to from the call itself and written afterwards: written first, they would
    overwrite keys that the call's early queries still see.
    """

    def __init__(
        self,
        cache: SlotCache,
        slots: torch.Tensor,
        positions: torch.Tensor,
        valid: torch.Tensor | None,
        call: SlotCall | None,
    ) -> None:
        self._cache = cache
        self._slots = slots
        self._call = call
        size = cache.length
        begin = positions[:, :1]
        index = torch.arange(size, device=slots.device)
        # The position that each index holds; below 0 there is none.
        kept = begin - 1 - (begin - 1 - index).remainder(size)
        seen = torch.cat([kept, positions], dim=1)
        age = positions[:, :, None] - seen[:, None, :]
        self.mask: torch.Tensor | None = ((age >= 0) & (age < size) & (seen >= 0)[:, None, :])[:, None]
        # Of more new entries than the ring holds, only the last are written.
        last = positions if valid is None else torch.where(valid, positions, -1)
        fresh = positions > last.amax(1, keepdim=True) - size
        if valid is not None:
            fresh = fresh & valid
        self._targets = cache._targets(
            slots, positions.remainder(size), None if positions.shape[1] == 1 and valid is None else fresh
        )

    def update(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        cache = self._cache
        seen = (
            torch.cat([cache.keys[layer].index_select(0, self._slots), keys], dim=1),
            torch.cat([cache.values[layer].index_select(0, self._slots), values], dim=1),
        )
        for flat, new in zip(cache._flat(layer), (keys, values), strict=True):
            if self._call is not None:
                self._call.write_at(flat, self._targets, new.flatten(0, 1))
            else:
                flat.index_copy_(0, self._targets, new.flatten(0, 1))
        return seen
