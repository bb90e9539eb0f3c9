"""The message from talker to codec survives the two tensors that carry it."""

import numpy as np
import pytest

from backends.serving.window import META_WORDS, Window


@pytest.mark.parametrize(
    "frames",
    [
        np.arange(24, dtype=np.int32).reshape(3, 8),
        np.linspace(-1, 1, 64, dtype=np.float32).reshape(2, 32),
        np.zeros((0, 8), np.int32),
    ],
    ids=["codes", "latents", "no frames"],
)
@pytest.mark.parametrize("reason", [None, "stop", "length"])
def test_round_trip(frames, reason):
    window = Window(7, 1 << 40, 3, frames, context=0, start=19, finish_reason=reason)
    payload, meta = window.pack()
    assert payload.dtype == np.int32 and meta.dtype == np.int64 and meta.shape == (META_WORDS,)
    copy = Window.unpack(payload[None], meta[None])
    assert np.array_equal(copy.frames, frames) and copy.frames.dtype == frames.dtype
    assert (copy.row, copy.generation, copy.index, copy.start) == (7, 1 << 40, 3, 19)
    assert copy.finish_reason == reason and copy.final == (reason is not None)


def test_unpacking_copies_what_triton_may_reuse():
    payload, meta = Window(0, 1, 0, np.ones((1, 2), np.int32)).pack()
    window = Window.unpack(payload, meta)
    payload[:] = 9
    assert window.frames.tolist() == [[1, 1]]


@pytest.mark.parametrize(("word", "value"), [(3, 2), (4, 3), (3, -1), (8, 5), (8, -1)], ids=str)
def test_tensors_that_no_talker_made_are_refused(word, value):
    payload, meta = Window(0, 1, 0, np.ones((1, 2), np.int32)).pack()
    meta[word] = value
    with pytest.raises(ValueError, match="meta tells of"):
        Window.unpack(payload, meta)
    with pytest.raises(ValueError, match="meta has 3 words"):
        Window.unpack(payload, meta[:3])


def test_context_does_not_count_as_new_and_the_opening_is_marked():
    window = Window(0, 1, 0, np.zeros((12, 2), np.int32), context=4)
    assert window.new == 8 and not window.opening
    assert Window(0, 1, -1, np.zeros((0, 2), np.int32)).opening
