"""Reads the samples of a draw and makes a batch of them; runs in the workers, if there are any."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from torch.utils.data import Dataset, IterableDataset, get_worker_info

from steelyard.batches import Tree
from steelyard.probing.replica import preserved_random_states
from steelyard.sampling.domain_batch import DomainBatch
from steelyard.sampling.draws import Draw
from steelyard.sampling.seeds import seed_everything
from steelyard.sampling.streams import Stream

Collate = Callable[[list[Any]], Tree]


def is_stream(dataset: Any) -> bool:
    """Return whether a dataset can only be iterated over."""
    return isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__")


@final
class Batches(Dataset["DomainBatch | None"]):
    """The batch of a draw.

    What datasets and collate function draw at random follows from the number of the batch: not from the number of
    workers, nor from what the rest of the program draws.

    Args:
        datasets: by domain.
        collate: makes a domain's batch of a list of its samples.
    """

    def __init__(self, datasets: Mapping[str, Any], collate: Collate) -> None:
        self.datasets = dict(datasets)
        self.collate = collate
        self._streams = {name: Stream(name, data) for name, data in datasets.items() if is_stream(data)}

    def __getitem__(self, draw: Draw) -> DomainBatch | None:
        """Return the batch; nothing for an idle draw."""
        if not draw.samples:
            return None
        worker = get_worker_info()
        if self._streams and worker is not None and worker.id != draw.worker:
            raise RuntimeError(f"torch gave worker {worker.id} a batch that worker {draw.worker} must read.")
        with preserved_random_states(()):
            seed_everything(draw.seed)
            batch = {}
            for name, samples in draw.samples.items():
                batch[name] = self.collate(self._read(name, samples, draw.stream_seed))
            return DomainBatch(batch, draw.factors)

    def _read(self, name: str, samples: Sequence[int], stream_seed: int) -> list[Any]:
        if name in self._streams and isinstance(samples, range):
            return self._streams[name].read(samples, seed=stream_seed)
        dataset = self.datasets[name]
        if getattr(dataset, "__getitems__", None):  # torch's name for reading several samples at once
            several: list[Any] = dataset.__getitems__(list(samples))
            return several
        return [dataset[index] for index in samples]
