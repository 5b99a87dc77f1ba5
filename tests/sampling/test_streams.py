"""Iterable datasets: any position can be read again, with the same random numbers."""

import random

import pytest
import torch

from steelyard.sampling.streams import Stream


class Noisy:
    """Counts, adds random numbers, and shuffles within a buffer."""

    def __init__(self, length=7):
        self.length = length

    def __iter__(self):
        buffer = []
        for number in range(self.length):
            buffer.append((number, random.random(), float(torch.rand(()))))
            if len(buffer) == 3:
                yield buffer.pop(random.randrange(3))
        yield from buffer


def test_a_stream_that_ends_starts_again():
    numbers = [number for number, _, _ in Stream("a", Noisy()).read(range(21), seed=0)]
    passes = [numbers[0:7], numbers[7:14], numbers[14:21]]
    assert all(sorted(order) == list(range(7)) for order in passes)
    assert passes[0] != passes[1]


@pytest.mark.parametrize("start", [0, 3, 6, 7, 15])
def test_a_position_gives_the_same_sample_whatever_was_read_before(start):
    whole = Stream("a", Noisy()).read(range(20), seed=4)
    assert Stream("a", Noisy()).read(range(start, 20), seed=4) == whole[start:]
    stream = Stream("a", Noisy())
    stream.read(range(18), seed=4)
    assert stream.read(range(start, start + 2), seed=4) == whole[start : start + 2]
    assert stream.read(range(start, start + 2), seed=5) != whole[start : start + 2]


def test_the_programs_random_numbers_are_left_unchanged():
    before = random.getstate(), torch.get_rng_state()
    Stream("a", Noisy()).read(range(9), seed=0)
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])


def test_a_stream_without_samples_says_so():
    with pytest.raises(ValueError, match="domain 'a' yields no sample"):
        Stream("a", []).read(range(1), seed=0)
    with pytest.raises(ValueError, match="An iterator can be read once"):
        Stream("a", iter([1, 2])).read(range(3), seed=0)
