"""Random numbers drawn on the side."""

import random
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


@contextmanager
def preserved_random_states(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Put the global generators back as found: Python's, numpy's if loaded, torch's on CPU and the tensors' GPUs."""
    gpus = sorted({tensor.device.index for tensor in tensors if tensor.device.type == "cuda"})
    numpy = sys.modules.get("numpy")
    python_state = random.getstate()
    numpy_state = numpy.random.get_state() if numpy else None
    try:
        with torch.random.fork_rng(devices=gpus):
            yield
    finally:
        random.setstate(python_state)
        if numpy:
            numpy.random.set_state(numpy_state)
