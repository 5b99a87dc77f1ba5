"""Random numbers that follow from what they are for, and not from what was drawn before."""

import random
import sys
from hashlib import blake2b

import torch


def seed_of(*purpose: object) -> int:
    """Return a seed that follows from the purpose alone; 32 bits, because torch's generator on the CPU uses no more.

    >>> seed_of(0, "order", "a", 1) == seed_of(0, "order", "a", 1) != seed_of(0, "order", "a", 2)
    True
    """
    return _digest(purpose, size=4)


def uniform_of(*purpose: object) -> float:
    """Return a random number from 0 to 1, without 1, that follows from the purpose alone."""
    return (_digest(purpose, size=8) >> 11) / 2**53  # as many bits as a float holds exactly


def seed_everything(seed: int) -> None:
    """Seed Python's generator, torch's on the CPU, and numpy's if it is loaded; no GPU's."""
    random.seed(seed)
    torch.default_generator.manual_seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed)


def _digest(purpose: tuple[object, ...], *, size: int) -> int:
    return int.from_bytes(blake2b(repr(purpose).encode(), digest_size=size).digest(), "big")
