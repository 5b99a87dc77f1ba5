"""The cost of a step as tables and as pictures."""

import io
from collections.abc import Sequence
from typing import Any

from steelyard.benchmark.step_costs import StepCost

_OTHERS = ("torchjd", "higher", "Gramian", "bare")  # how the names of methods begin that are not this library's
_RATIO_TICKS = (1, 1.5, 2, 3, 5, 10)
Group = tuple[str, int]
"""A network and a number of domains."""


def markdown_tables(costs: Sequence[StepCost]) -> str:
    """Return one table in Markdown for each network and number of domains."""
    return "".join(map(_markdown_table, _by_group(costs).values()))


def memory_text(cost: StepCost) -> str:
    """Return the ratio of memory, or a dash where it was not measured."""
    if cost.memory_ratio is None:
        return "–"
    return f"{cost.memory_ratio:.2f}×"


def draw_scaling(costs: Sequence[StepCost]) -> bytes:
    """Draw the cost against the number of domains: a panel for each network measured with several numbers."""
    plt = _pyplot()
    votes = [cost for cost in costs if cost.every == 1 and not _is_others(cost)]
    networks = _networks_of_several(votes)
    figure, panels = plt.subplots(1, len(networks), figsize=(4.5 * len(networks), 3.6), squeeze=False)
    for network, panel in zip(networks, panels[0], strict=True):
        _draw_network(panel, network, [cost for cost in votes if cost.network == network])
    panels[0][0].set_ylabel("time of a step with a vote, relative to plain")
    panels[0][-1].legend(frameon=False, fontsize=8)
    figure.tight_layout()
    return _as_png(figure)


def draw_peers(costs: Sequence[StepCost]) -> bytes:
    """Draw a bar for each row: a panel for each group with others' methods, or for the first group if there is none."""
    plt = _pyplot()
    groups = _by_group(costs)
    compared = [group for group in groups if any(map(_is_others, groups[group]))]
    if not compared:
        compared = list(groups)[:1]
    figure, panels = plt.subplots(1, len(compared), figsize=(4.2 * len(compared), 5.4), squeeze=False)
    for group, panel in zip(compared, panels[0], strict=True):
        _draw_bars(panel, groups[group])
    figure.tight_layout()
    return _as_png(figure)


def _by_group(costs: Sequence[StepCost]) -> dict[Group, list[StepCost]]:
    groups: dict[Group, list[StepCost]] = {}
    for cost in costs:
        groups.setdefault((cost.network, cost.domains), []).append(cost)
    return groups


def _markdown_table(costs: Sequence[StepCost]) -> str:
    plain = costs[0]
    lines = [
        f"\n### `{plain.network}`, {plain.domains} domains (a plain step: {plain.milliseconds:.0f} ms)\n",
        "| method | every | time | spread (IQR) | peak memory | call |",
        "| --- | ---: | ---: | ---: | ---: | --- |",
    ]
    for cost in costs:
        ratios = f"{cost.time_ratio:.2f}× | {cost.time_ratio_spread:.2f} | {memory_text(cost)}"
        call = f"`{cost.call}`" if cost.call else "–"
        lines.append(f"| {cost.method} | {cost.every} | {ratios} | {call} |")
    return "\n".join(lines) + "\n"


def _is_others(cost: StepCost) -> bool:
    return cost.method.startswith(_OTHERS)


def _networks_of_several(costs: Sequence[StepCost]) -> list[str]:
    """Return the networks with several numbers of domains, or the first network if there is none."""
    domains_by_network: dict[str, set[int]] = {}
    for cost in costs:
        domains_by_network.setdefault(cost.network, set()).add(cost.domains)
    several = [network for network, domains in domains_by_network.items() if len(domains) > 1]
    return several or list(domains_by_network)[:1]


def _draw_network(panel: Any, network: str, costs: Sequence[StepCost]) -> None:
    ratios_by_method: dict[str, dict[int, float]] = {}
    for cost in sorted(costs, key=lambda cost: cost.domains):
        if cost.method != "plain":
            ratios_by_method.setdefault(cost.method, {})[cost.domains] = cost.time_ratio
    for method, ratios in ratios_by_method.items():
        panel.plot(list(ratios), list(ratios.values()), marker="o", label=method)
    panel.axhline(1.0, color="grey", linewidth=0.8)
    panel.set(xscale="log", yscale="log", xlabel="domains", title=network)
    domains = sorted({cost.domains for cost in costs})
    panel.set_xticks(domains, list(map(str, domains)), minor=False)
    panel.set_xticks([], minor=True)
    panel.set_yticks(_RATIO_TICKS, [f"{ratio}×" for ratio in _RATIO_TICKS], minor=False)
    panel.set_yticks([], minor=True)


def _draw_bars(panel: Any, costs: Sequence[StepCost]) -> None:
    slowest_first = sorted(costs, key=lambda cost: cost.time_ratio, reverse=True)
    for cost in slowest_first:
        if cost.method == "plain":
            continue
        name = cost.method if cost.every == 1 else f"{cost.method}, every {cost.every}"
        bars = panel.barh(name, cost.time_ratio, color="tab:grey" if _is_others(cost) else "tab:blue")
        panel.bar_label(bars, fmt="%.2f", padding=2, fontsize=7)
    panel.axvline(1.0, color="black", linewidth=0.8)
    title = f"{costs[0].network}, {costs[0].domains} domains"
    panel.set(title=title, xlabel="time of a step, relative to plain")
    panel.set_xlim(0, 1.15 * slowest_first[0].time_ratio)
    panel.tick_params(axis="y", labelsize=7)


def _as_png(figure: Any) -> bytes:
    """Return a figure as the content of a PNG file, and close it."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=110)
    _pyplot().close(figure)
    return file.getvalue()


def _pyplot() -> Any:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    return plt
