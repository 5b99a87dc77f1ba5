"""Which trials are for choosing settings and which for confirming them; committed before any was run.

Settings of the weighting (rate, caution, floor, scale, default judge) are chosen from the group `choosing` alone. The
group `confirming` is run once with what was chosen, and its tables are the ones that are published.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from steelyard.experiments.problems.catalogue import problem_named
from steelyard.experiments.trials.trial import OPTIMIZERS, Trial
from steelyard.files.checks import check_choice


@dataclass(frozen=True, kw_only=True)
class Block:
    """Trials on one problem: every variant, every optimizer, every seed.

    Args:
        problem: Its name.
        seeds: From the first up to, not including, the second.
        optimizers: Their names.
        variants: Their names; default all.
        steps: Of each training; default the problem's own number.
    """

    problem: str
    seeds: tuple[int, int]
    optimizers: tuple[str, ...] = OPTIMIZERS
    variants: tuple[str, ...] = ()
    steps: int | None = None

    def trials(self, methods: Sequence[str], data: Path | None = None) -> Iterator[Trial]:
        """Yield the trials; those of one seed and optimizer, which are compared, are together.

        Raises:
            UserError: There is no such problem or variant, or a folder of data is needed.
        """
        problem = problem_named(self.problem, data)
        for variant in self.variants:
            check_choice(f"variant of {self.problem}", variant, tuple(problem.variants))
        variants = self.variants or tuple(problem.variants)
        for variant, optimizer, seed, method in itertools.product(
            variants, self.optimizers, range(*self.seeds), methods
        ):
            yield Trial(
                problem=self.problem,
                variant=variant,
                optimizer=optimizer,
                steps=self.steps or problem.steps,
                method=method,
                seed=seed,
            )


GROUPS: dict[str, tuple[Block, ...]] = {
    "choosing": (
        Block(problem="digits", seeds=(100, 108)),
        Block(problem="reviews-4", seeds=(100, 108)),
    ),
    "confirming": (
        Block(problem="digits", seeds=(0, 6)),
        Block(problem="reviews-16", seeds=(0, 2)),
        Block(problem="heart", seeds=(0, 6)),
    ),
    # Drift shows in long training: ten thousand steps on problems where equal weights are right.
    "drift": (Block(problem="digits", seeds=(0, 4), variants=("plain",), steps=10_000),),
}
"""The groups of trials, by name. Seeds from 1000 on are for checks that training converges, and in no group."""
