"""What a run is given to compute on: one GPU, if there are any, and its cores."""

import os
from collections.abc import Mapping

import torch

_ON_GPUS = ("cuda", "gpu", "auto")
VISIBLE = "CUDA_VISIBLE_DEVICES"
"""The variable that settles which GPUs a process sees, if it is set before the process looks."""


def environment_of(slot: int, accelerator: str) -> dict[str, str]:
    """Return what to set for a local worker, so that workers share the GPUs of the machine evenly.

    Args:
        slot: The worker's place, from 0.
        accelerator: What runs are trained on.
    """
    count = torch.cuda.device_count() if accelerator in _ON_GPUS else 0
    chosen = choose_gpu(slot, count=count, visible=os.environ.get(VISIBLE))
    return {} if chosen is None else {VISIBLE: chosen}


def choose_gpu(slot: int, *, count: int, visible: str | None = None) -> str | None:
    """Return the GPU of a local worker; none if there is none to choose.

    Args:
        slot: The worker's place, from 0.
        count: How many GPUs this process sees.
        visible: Which these are, if somebody has chosen among those of the machine: numbers or names.

    >>> [choose_gpu(slot, count=2) for slot in range(3)]
    ['0', '1', '0']
    >>> choose_gpu(1, count=2, visible="5,GPU-8a7c")
    'GPU-8a7c'
    """
    names = [str(number) for number in range(count)] if visible is None else visible.split(",")[:count]
    return names[slot % len(names)].strip() if names else None


def gpus_of_a_run(accelerator: str, resources: Mapping[str, float]) -> int:
    """Return how many GPUs a run asks a cluster for: one if it may use any and the cluster has some.

    >>> gpus_of_a_run("auto", {"CPU": 8.0, "GPU": 2.0}), gpus_of_a_run("auto", {"CPU": 8.0})
    (1, 0)
    """
    return int(accelerator in _ON_GPUS and resources.get("GPU", 0) >= 1)


def runs_at_a_time(resources: Mapping[str, float], *, threads: int, gpus: int) -> int:
    """Return how many runs a cluster has room for, at least one.

    Args:
        resources: What it has, by Ray's names.
        threads: Cores of each run.
        gpus: Of each run.

    >>> runs_at_a_time({"CPU": 16.0, "GPU": 2.0}, threads=4, gpus=1)
    2
    """
    room = [resources.get("CPU", 1) // threads]
    if gpus:
        room.append(resources.get("GPU", 0) // gpus)
    return max(1, int(min(room)))
