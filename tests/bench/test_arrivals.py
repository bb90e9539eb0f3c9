"""When requests start, and what they say."""

import numpy as np
import pytest

from backends.families.paced import frames_of
from bench.arrivals import ClosedLoop, OpenLoop
from bench.texts import sentences, spread_lengths, texts_of_length


def test_poisson_arrivals_have_the_rate_and_the_spread_of_a_poisson_process():
    starts = OpenLoop(20.0).starts(20_000, seed=1)
    intervals = np.diff([0.0, *starts])
    assert intervals.min() > 0
    assert intervals.mean() == pytest.approx(1 / 20, rel=0.03)
    assert intervals.std() == pytest.approx(intervals.mean(), rel=0.05)


def test_arrivals_are_the_same_for_the_same_seed_only():
    load = OpenLoop(3.0)
    assert load.starts(10, seed=4) == load.starts(10, seed=4)
    assert load.starts(10, seed=4) != load.starts(10, seed=5)


@pytest.mark.parametrize("wrong", [0, -1])
def test_loads_that_cannot_be_are_refused(wrong):
    with pytest.raises(ValueError, match="concurrency"):
        ClosedLoop(wrong)
    with pytest.raises(ValueError, match="rate"):
        OpenLoop(wrong)


def test_texts_have_exactly_the_length_asked_for():
    lengths = [1, 2, 80, 299, 301, 5000]
    for text, length in zip(texts_of_length(lengths), lengths, strict=True):
        assert len(text) == len(text.strip()) == length


def test_a_paced_voice_makes_a_frame_of_each_character_of_each_piece():
    (text,) = texts_of_length([250])
    assert frames_of(text, 300) == 250
    # Cut into pieces, a text loses the white space between them.
    (long,) = texts_of_length([3000])
    assert 2900 < frames_of(long, 300) <= 3000


def test_lengths_spread_around_their_mean():
    lengths = spread_lengths(4000, 125, 0.3, seed=0)
    assert np.mean(lengths) == pytest.approx(125, rel=0.02)
    assert np.std(np.log(lengths)) == pytest.approx(0.3, rel=0.05)


def test_sentences_repeat_when_they_run_out():
    many = sentences(40)
    assert len(many) == 40
    assert all(text.strip() for text in many)
