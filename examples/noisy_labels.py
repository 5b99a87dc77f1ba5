"""Domains that differ in how noisy their labels are: the best weights are known, so learned weights can be judged.

Every domain d has labels y = xᵀθ* + σ_d ε with the same θ*. By Gauss and Markov the weights that estimate θ* best are
λ_d ∝ 1/σ_d². The same weights minimise the spread of SGD around θ*, which is Σ λ_d² σ_d² up to a constant.

    python examples/noisy_labels.py OUT      writes OUT/noisy_labels.png and OUT/noisy_labels.csv
"""

import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.nn.functional import mse_loss

import steelyard as sy

# All settings were fixed before any result was seen.
FEATURES = 20
BATCH = 16  # samples per domain and step
STEPS = 1500
SEEDS = 6
LEARNING_RATE = 0.1
SECOND_HALF = STEPS // 2  # the step from which weights and errors are averaged
TWO = (0.5, 1.0)  # σ of each domain's labels
THREE = (0.5, 1.0, 2.0)
METHODS = ("equal", "conservative", "greedy", "best")
LEARNED = ("conservative", "greedy")
COLOURS = {"greedy": "tab:blue", "conservative": "tab:orange", "best": "black", "equal": "grey"}

Noise = tuple[float, ...]


class Run(NamedTuple):
    """One training run.

    Attributes:
        weights: one row per step, one column per domain.
        error: ‖θ − θ*‖², averaged over the second half of the steps.
    """

    weights: torch.Tensor
    error: float


RunsByMethod = dict[str, list[Run]]


def best_weights(noise: Noise) -> list[float]:
    """λ_d ∝ 1/σ_d²."""
    precisions = [sigma**-2 for sigma in noise]
    return [precision / sum(precisions) for precision in precisions]


def make_weighting(method: str, noise: Noise) -> sy.Weighting:
    """The method by name; window and prior grow with the number of domains."""
    if method == "equal":
        return sy.Fixed()
    if method == "best":
        return sy.Fixed(best_weights(noise))
    return sy.DirichletVote(method, window=50 * len(noise), prior_votes=4 * len(noise))


def train(noise: Noise, method: str, seed: int) -> Run:
    """Train a linear model on all domains at once."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randn(FEATURES, generator=generator)  # θ*
    model = torch.nn.Linear(FEATURES, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    domains = [f"σ = {sigma:g}" for sigma in noise]
    probe = sy.InnerLoop() if method in LEARNED else None
    balancer = sy.Balancer(domains, loss=mse_loss, weighting=make_weighting(method, noise), probe=probe)

    weights, errors = [], []
    for _ in range(STEPS):
        batch = {}
        for domain, sigma in zip(domains, noise, strict=True):
            batch[domain] = draw_samples(truth, sigma, generator)
        loss = balancer(model, batch, optimizer)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        weights.append(list(balancer.weights.values()))
        errors.append((model.weight.detach() - truth).square().sum().item())
    return Run(torch.tensor(weights), mean(errors[SECOND_HALF:]))


def draw_samples(truth: torch.Tensor, sigma: float, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """One domain's inputs and labels of one step."""
    x = torch.randn(BATCH, FEATURES, generator=generator)
    y = x @ truth + sigma * torch.randn(BATCH, generator=generator)
    return x, y[:, None]


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean."""
    return sum(values) / len(values)


def mean_error(runs: list[Run]) -> float:
    """The mean over runs of ‖θ − θ*‖²."""
    return mean([run.error for run in runs])


def summarise(noise: Noise, runs_by_method: RunsByMethod) -> list[dict[str, str]]:
    """One row per method: mean weights and error over the second half of all runs."""
    rows = []
    for method, runs in runs_by_method.items():
        weights = torch.stack([run.weights[SECOND_HALF:].mean(0) for run in runs]).mean(0)
        row = {"domains": str(len(noise)), "method": method}
        for sigma, weight in zip(noise, weights.tolist(), strict=True):
            row[f"weight {sigma:g}"] = f"{weight:.3f}"
        row["error"] = f"{mean_error(runs):.4f}"
        rows.append(row)
    return rows


def write_table(rows: list[dict[str, str]], path: Path) -> None:
    """Write the rows as CSV; a table of two domains leaves the third weight empty."""
    columns = ["domains", "method", *[f"weight {sigma:g}" for sigma in THREE], "error"]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=columns)
        writer.writeheader()
        writer.writerows(rows)


def draw(runs: dict[Noise, RunsByMethod], path: Path) -> None:
    """Draw the weights over training for two and for three domains, and the error that they lead to."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 3.8), layout="constrained")
    draw_two_domains(left, runs[TWO])
    draw_three_domains(middle, runs[THREE]["greedy"])
    draw_errors(right, runs[TWO])
    figure.savefig(path, dpi=110)


def draw_two_domains(panel: Any, runs_by_method: RunsByMethod) -> None:
    """The weight of the cleaner domain: mean and standard deviation over runs."""
    steps = range(1, STEPS + 1)
    for method in ("greedy", "conservative"):
        curves = torch.stack([run.weights[:, 0] for run in runs_by_method[method]])
        centre, deviation = curves.mean(0), curves.std(0)
        panel.plot(steps, centre, color=COLOURS[method], label=f"learned, {method}")
        panel.fill_between(steps, centre - deviation, centre + deviation, color=COLOURS[method], alpha=0.2, linewidth=0)
    panel.axhline(best_weights(TWO)[0], color="black", linestyle="--", label="best (known)")
    panel.axhline(0.5, color="grey", linestyle=":", label="equal")
    panel.set(title="Two domains: weight of the cleaner one", xlabel="step", ylabel="weight", ylim=(0, 1))
    panel.legend(fontsize=8, loc="lower center", ncols=2)


def draw_three_domains(panel: Any, runs: list[Run]) -> None:
    """The weights of all three domains, beside the best ones."""
    weights = torch.stack([run.weights for run in runs]).mean(0)
    best = best_weights(THREE)
    for domain, colour in enumerate(("tab:blue", "tab:green", "tab:red")):
        label = f"noise σ = {THREE[domain]:g}"
        panel.plot(range(1, STEPS + 1), weights[:, domain], color=colour, label=label)
        panel.axhline(best[domain], color=colour, linestyle="--", linewidth=1)
    panel.set(title="Three domains: learned (greedy) and best (dashed)", xlabel="step", ylim=(0, 1))
    panel.legend(fontsize=8, loc="upper center", ncols=3)


def draw_errors(panel: Any, runs_by_method: RunsByMethod) -> None:
    """The model's error by method."""
    for method, runs in runs_by_method.items():
        panel.bar(method, mean_error(runs), color=COLOURS[method])
    panel.set(title="Two domains: error of the model, ‖θ − θ*‖²")


def main(out: Path) -> None:
    """Run everything, print the table, save the picture."""
    out.mkdir(parents=True, exist_ok=True)
    table, picture = out / "noisy_labels.csv", out / "noisy_labels.png"
    runs: dict[Noise, RunsByMethod] = {}
    rows = []
    print("two and three domains, four methods: about two minutes in all", flush=True)
    for noise in (TWO, THREE):
        runs[noise] = {}
        for method in METHODS:
            print(f"{len(noise)} domains, {method}: {SEEDS} runs of {STEPS} steps", flush=True)
            runs[noise][method] = [train(noise, method, seed) for seed in range(SEEDS)]
        rows += summarise(noise, runs[noise])
    write_table(rows, table)
    print(table.read_text())
    draw(runs, picture)
    print(f"picture: {picture}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo"))
