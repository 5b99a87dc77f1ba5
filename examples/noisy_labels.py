"""Domains that differ in how noisy their labels are: the best weighting is known, so learned weights can be judged.

Every domain d has y = xᵀθ* + σ_d ε with the same θ*. By Gauss and Markov the weights that estimate θ* best are
λ_d ∝ 1/σ_d²; the same weights minimise the spread of SGD around θ*, which is Σ λ_d² σ_d² up to a constant.

    python examples/noisy_labels.py OUT      writes OUT/noisy_labels.png and OUT/noisy_labels.csv
"""

import csv
import sys
from pathlib import Path
from typing import NamedTuple

import torch
from torch.nn.functional import mse_loss

import steelyard as sy

# Fixed before any result was seen.
FEATURES, BATCH, STEPS, SEEDS, LEARNING_RATE = 20, 16, 1500, 6, 0.1
TWO, THREE = (0.5, 1.0), (0.5, 1.0, 2.0)  # σ of each domain's labels


class Run(NamedTuple):
    """One training run: the weights at every step, and the error ‖θ − θ*‖² averaged over the second half."""

    weights: torch.Tensor
    error: float


def best_weights(noise: tuple[float, ...]) -> list[float]:
    """λ_d ∝ 1/σ_d²."""
    precisions = [sigma**-2 for sigma in noise]
    return [precision / sum(precisions) for precision in precisions]


def weighting(method: str, noise: tuple[float, ...]) -> sy.Weighting:
    """The method by name; window and prior grow with the number of domains."""
    if method in ("greedy", "conservative"):
        return sy.DirichletVote(method, window=50 * len(noise), prior_votes=4 * len(noise))
    return sy.Fixed(best_weights(noise) if method == "best" else None)


def train(noise: tuple[float, ...], method: str, seed: int) -> Run:
    """Train a linear model on all domains at once."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randn(FEATURES, generator=generator)
    model = torch.nn.Linear(FEATURES, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    names = [f"σ = {sigma:g}" for sigma in noise]
    probe = sy.InnerLoop() if method in ("greedy", "conservative") else None
    balancer = sy.Balancer(names, loss=mse_loss, weighting=weighting(method, noise), probe=probe)
    weights, errors = [], []
    for _ in range(STEPS):
        batch = {}
        for name, sigma in zip(names, noise, strict=True):
            x = torch.randn(BATCH, FEATURES, generator=generator)
            y = x @ truth + sigma * torch.randn(BATCH, generator=generator)
            batch[name] = (x, y[:, None])
        loss = balancer(model, batch, optimizer)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        weights.append(list(balancer.weights.values()))
        errors.append((model.weight.detach() - truth).square().sum().item())
    return Run(torch.tensor(weights), sum(errors[STEPS // 2 :]) / (STEPS - STEPS // 2))


def summarise(noise: tuple[float, ...], runs: dict[str, list[Run]]) -> list[dict[str, str]]:
    """One row per method: mean weights and error over the second half of all runs."""
    rows = []
    for method, repeats in runs.items():
        mean = torch.stack([run.weights[STEPS // 2 :].mean(0) for run in repeats]).mean(0)
        row = {"domains": str(len(noise)), "method": method}
        row |= {f"weight {sigma:g}": f"{weight:.3f}" for sigma, weight in zip(noise, mean.tolist(), strict=True)}
        rows.append(row | {"error": f"{sum(run.error for run in repeats) / len(repeats):.4f}"})
    return rows


def draw(runs: dict[tuple[float, ...], dict[str, list[Run]]], path: Path) -> None:
    """Weights over training for two and for three domains, and what they cost in error."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 3.8), layout="constrained")
    steps = range(1, STEPS + 1)
    for method, colour in (("greedy", "tab:blue"), ("conservative", "tab:orange")):
        curves = torch.stack([run.weights[:, 0] for run in runs[TWO][method]])
        mean, sd = curves.mean(0), curves.std(0)
        left.plot(steps, mean, color=colour, label=f"learned, {method}")
        left.fill_between(steps, mean - sd, mean + sd, color=colour, alpha=0.2, linewidth=0)
    left.axhline(best_weights(TWO)[0], color="black", linestyle="--", label="best (known)")
    left.axhline(0.5, color="grey", linestyle=":", label="equal")
    left.set(title="Two domains: weight of the cleaner one", xlabel="step", ylabel="weight", ylim=(0, 1))
    left.legend(fontsize=8, loc="lower center", ncols=2)
    for d, (sigma, colour) in enumerate(zip(THREE, ("tab:blue", "tab:green", "tab:red"), strict=True)):
        curves = torch.stack([run.weights[:, d] for run in runs[THREE]["greedy"]])
        middle.plot(steps, curves.mean(0), color=colour, label=f"noise σ = {sigma:g}")
        middle.axhline(best_weights(THREE)[d], color=colour, linestyle="--", linewidth=1)
    middle.set(title="Three domains: learned (greedy) and best (dashed)", xlabel="step", ylim=(0, 1))
    middle.legend(fontsize=8, loc="upper center", ncols=3)
    methods = list(runs[TWO])
    means = [sum(run.error for run in runs[TWO][method]) / SEEDS for method in methods]
    colours = {"greedy": "tab:blue", "conservative": "tab:orange", "best": "black", "equal": "grey"}
    right.bar(methods, means, color=[colours[method] for method in methods])
    right.set(title="Two domains: error of the model, ‖θ − θ*‖²")
    figure.savefig(path, dpi=110)


def main(out: Path) -> None:
    """Run everything, print the table, save the picture."""
    out.mkdir(parents=True, exist_ok=True)
    runs: dict[tuple[float, ...], dict[str, list[Run]]] = {}
    rows = []
    print("two and three domains, four methods: about two minutes in all", flush=True)
    for noise in (TWO, THREE):
        runs[noise] = {}
        for method in ("equal", "conservative", "greedy", "best"):
            print(f"{len(noise)} domains, {method}: {SEEDS} runs of {STEPS} steps", flush=True)
            runs[noise][method] = [train(noise, method, seed) for seed in range(SEEDS)]
        rows += summarise(noise, runs[noise])
    with (out / "noisy_labels.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=["domains", "method", *(f"weight {s:g}" for s in THREE), "error"])
        writer.writeheader()
        writer.writerows(rows)
    print((out / "noisy_labels.csv").read_text())
    draw(runs, out / "noisy_labels.png")
    print(f"picture: {out / 'noisy_labels.png'}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo"))
