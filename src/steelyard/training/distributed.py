"""One measurement for all ranks."""

import torch
from torch import distributed

from steelyard.measurement import Measurement


def is_shared(group: distributed.ProcessGroup | None) -> bool:
    """Whether other ranks train along."""
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size(group) > 1


def meeting_device(group: distributed.ProcessGroup | None, device: torch.device) -> torch.device:
    """Where ranks exchange small tensors: in main memory if their backend can, else where the model is."""
    backend = distributed.get_backend(group)
    return torch.device("cpu") if "gloo" in backend or "mpi" in backend else device


def average_over_ranks(
    measurement: Measurement, *, group: distributed.ProcessGroup | None, device: torch.device
) -> Measurement:
    """The mean over the ranks at which a domain took part, computed alike and so bit-identical on every rank.

    Where all ranks measured the same domains this is the plain mean. Where they did not, each rank's values are first
    taken relative to their mean over its own domains, so that a domain is not judged by which others it met, and the
    mean level of all ranks is added back. A rank that measured fewer than two domains compares nothing and is left out.
    """
    rows = torch.stack([measurement.values, measurement.present.double()]).to(meeting_device(group, device))
    gathered = [torch.empty_like(rows) for _ in range(distributed.get_world_size(group))]
    distributed.all_gather(gathered, rows, group=group)
    table = torch.stack(gathered).cpu()
    values, present = table[:, 0], table[:, 1] > 0
    comparing = present.sum(1) >= 2
    values, present = values[comparing], present[comparing]
    if not comparing.any():
        return Measurement.nothing(len(measurement.values))
    if (present == present[0]).all():
        return Measurement(values.mean(0), present[0])
    values = values.where(present, 0.0)
    level = values.sum(1, keepdim=True) / present.sum(1, keepdim=True)
    relative = (values - level).where(present, 0.0).sum(0) / present.sum(0).clamp(min=1)
    return Measurement(level.mean() + relative, present.any(0))
