"""Where the time of a training epoch goes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from time import perf_counter
from typing import Any

from lightning.fabric import Fabric

from steelyard.imaging.train import training
from steelyard.imaging.train.launch import TrainingJob, prepare_training
from steelyard.imaging.train.run_writer import RunWriter
from steelyard.imaging.train.sampling import BatchIndices
from steelyard.imaging.train.training_state import TrainingState

PARTS = (
    "data",  # gathering slices
    "augmentation",
    "vote",  # the probe
    "forward",  # the outer losses
    "backward",  # their gradients
    "optimizer",
    "validation",
    "records",  # of steps and epochs, and the checkpoint on disk
    "other",  # the rest of the loop
)


class Stopwatch:
    """Adds up the time of each part. Parts may be nested: time counts for the innermost, or for `other`.

    Args:
        clock: Returns the time in seconds.

    Attributes:
        seconds: By part. Their sum is the time from the start of the watch to the last change of parts.
    """

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self._clock = clock
        self._running = ["other"]  # the innermost part is last
        self._last_change = clock()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the time inside for a part."""
        self.add_time()
        self._running.append(name)
        try:
            yield
        finally:
            self.add_time()
            self._running.pop()

    def add_time(self) -> None:
        """Add the time since the last change to the innermost part."""
        now = self._clock()
        self.seconds[self._running[-1]] += now - self._last_change
        self._last_change = now

    def timed(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        """Return the function with the time of its calls counted for a part."""

        @wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            with self.part(name):
                return function(*arguments, **named)

        return call


@dataclass(frozen=True, kw_only=True)
class EpochProfile:
    """The time of one epoch.

    Args:
        method: How the domains were weighted.
        steps: The number of steps.
        seconds: By part.
        total: The seconds of the epoch, which the parts add up to.
    """

    method: str
    steps: int
    seconds: dict[str, float]
    total: float


def profile_epoch(job: TrainingJob, fabric: Fabric | None = None) -> EpochProfile:
    """Train the first epoch of a run as `steelyard train` does, and time the parts of the loop.

    Args:
        job: The run; the first epoch writes into its folder.
        fabric: By default one CPU. A GPU would run on after a call returns, so its times would be wrong.
    """
    training_state, learned, judged = prepare_training(job, fabric or Fabric(accelerator="cpu", devices=1))
    run = RunWriter(job.out)
    run.begin(job.config, job.split, job.slices.digests)
    start = perf_counter()
    watch = Stopwatch()
    with _timed_parts(training_state, watch):
        record = next(training.fit(training_state, learned, judged))
        with watch.part("records"):
            run.record(training_state, record)
        total = perf_counter() - start
    method = job.config.method.name
    return EpochProfile(method=method, steps=len(record.steps), seconds=watch.seconds, total=total)


@contextmanager
def _timed_parts(training_state: TrainingState, watch: Stopwatch) -> Iterator[None]:
    """Replace the functions of the real loop by timed ones, and restore them afterwards."""
    # The object that the loop looks the function up in, the function's name, the part that its time counts for.
    timed_functions: list[tuple[Any, str, str]] = [
        (BatchIndices, "gather", "data"),
        (training, "augment_batch", "augmentation"),
        (training_state.balancer, "forward", "forward"),
        (training_state.fabric, "backward", "backward"),
        (training_state.optimizer, "zero_grad", "optimizer"),
        (training_state.optimizer, "step", "optimizer"),
        (training, "validate_on", "validation"),
        (training, "record_step", "records"),
    ]
    if training_state.balancer.probe is not None:
        timed_functions.append((training_state.balancer.probe, "find", "vote"))
    # A method of an instance is looked up in its class: there is nothing in the instance itself to restore.
    originals = [(owner, name, vars(owner).get(name)) for owner, name, _ in timed_functions]
    try:
        for owner, name, part in timed_functions:
            setattr(owner, name, watch.timed(getattr(owner, name), part))
        yield
    finally:
        for owner, name, original in originals:
            if original is None:
                delattr(owner, name)
            else:
                setattr(owner, name, original)
