"""Iterable datasets: samples that come one after the other, without an index."""

from collections.abc import Iterable, Iterator
from typing import Any, final

from steelyard.probing.replica import preserved_random_states
from steelyard.sampling.seeds import seed_everything, seed_of


@final
class StreamPositions:
    """Which samples of an iterable dataset come next: the next ones. Each worker reads a stream of its own.

    Args:
        workers: the number of worker processes; 0 for none.
    """

    def __init__(self, workers: int) -> None:
        self.slots = max(workers, 1)  # one counter of samples for each worker's stream

    def take(self, start: int, count: int, *, seed: int) -> range:  # noqa: ARG002
        """Return the positions of consecutive samples in the stream."""
        return range(start, start + count)


@final
class Stream:
    """Reads an iterable dataset from any position on; a stream that ends starts again.

    A position that lies ahead is reached by reading what comes before it, and one that lies behind by starting again.
    Random numbers that the dataset draws follow from the position, so that reading it again gives the same samples.

    Args:
        name: of the domain, for messages.
        dataset: what to iterate over.
    """

    def __init__(self, name: str, dataset: Iterable[Any]) -> None:
        self.name = name
        self.dataset = dataset
        self._iterator: Iterator[Any] | None = None
        self._position = 0
        self._seed: int | None = None

    def read(self, positions: range, *, seed: int) -> list[Any]:
        """Return the samples at these positions."""
        with preserved_random_states(()):
            if self._iterator is None or seed != self._seed or positions.start < self._position:
                self._seed, self._position = seed, 0
                self._start()
            while self._position < positions.start:  # a resumed run: read once more what has been read
                self._next()
            return [self._next() for _ in positions]

    def _start(self) -> None:
        seed_everything(seed_of(self._seed, self.name, "start", self._position))
        self._iterator = iter(self.dataset)

    def _next(self) -> Any:
        assert self._iterator is not None  # noqa: S101
        seed_everything(seed_of(self._seed, self.name, self._position))
        try:
            sample = next(self._iterator)
        except StopIteration:
            sample = self._first_of_next_pass()
        self._position += 1
        return sample

    def _first_of_next_pass(self) -> Any:
        self._start()
        assert self._iterator is not None  # noqa: S101
        for sample in self._iterator:
            return sample
        raise ValueError(
            f"domain {self.name!r} yields no sample. An iterator can be read once: pass a dataset whose __iter__ "
            "starts anew; and where it divides its samples among workers, there must be enough for each."
        )
