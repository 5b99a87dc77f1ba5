"""Random numbers drawn on the side."""

import random
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


@contextmanager
def preserved_random_states(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Put the global generators back as found: Python's, numpy's if loaded, torch's on CPU and the tensors' GPUs."""
    gpus = _gpus(tensors)
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


def random_states(tensors: Iterable[Tensor]) -> list[Any]:
    """Where the global generators are, to be compared: equal if and only if nothing was drawn in between."""
    numpy = sys.modules.get("numpy")
    return [
        random.getstate(),
        [state.tobytes() if hasattr(state, "tobytes") else state for state in numpy.random.get_state()]
        if numpy
        else None,
        torch.get_rng_state().numpy().tobytes() if numpy else torch.get_rng_state().tolist(),
        [torch.cuda.get_rng_state(gpu).tolist() for gpu in _gpus(tensors)],
    ]


def _gpus(tensors: Iterable[Tensor]) -> list[int]:
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return []
    return sorted({tensor.device.index for tensor in tensors if tensor.device.type == "cuda"})
