"""The cost of a step, as pictures: against the number of domains, and beside others' methods."""

import io
from collections.abc import Sequence
from typing import Any

from steelyard.benchmark.measure import Record

_OTHERS = ("torchjd", "higher", "Gramian", "bare")


def draw_scaling(records: Sequence[Record]) -> bytes:
    """One panel for each network that was measured with several numbers of domains."""
    plt = _pyplot()
    voting = [r for r in records if r.every == 1 and not r.method.startswith(_OTHERS)]
    networks = {r.network: len({s.domains for s in voting if s.network == r.network}) for r in voting}
    several = [network for network, numbers in networks.items() if numbers > 1] or list(networks)[:1]
    figure, panels = plt.subplots(1, len(several), figsize=(4.5 * len(several), 3.6), squeeze=False)
    for network, panel in zip(several, panels[0], strict=True):
        mine = [r for r in voting if r.network == network]
        for method in dict.fromkeys(r.method for r in mine if r.method != "plain"):
            points = sorted((r.domains, r.time_ratio) for r in mine if r.method == method)
            panel.plot(*zip(*points, strict=True), marker="o", label=method)
        panel.axhline(1.0, color="grey", linewidth=0.8)
        panel.set(xscale="log", yscale="log", xlabel="domains", title=network)
        ticks = sorted({r.domains for r in mine})
        panel.set_xticks(ticks, [str(tick) for tick in ticks], minor=False)
        panel.set_xticks([], minor=True)
        heights = [1, 1.5, 2, 3, 5, 10]
        panel.set_yticks(heights, [f"{height}×" for height in heights], minor=False)
        panel.set_yticks([], minor=True)
    panels[0][0].set_ylabel("time of a step with a vote, relative to plain")
    panels[0][-1].legend(frameon=False, fontsize=8)
    figure.tight_layout()
    return _packed(figure)


def draw_peers(records: Sequence[Record]) -> bytes:
    """One panel for each network that others' methods were measured on (the first, if none): a bar for each row."""
    plt = _pyplot()
    groups = dict.fromkeys((r.network, r.domains) for r in records if r.method.startswith(_OTHERS))
    groups = groups or dict.fromkeys((r.network, r.domains) for r in records[:1])
    figure, panels = plt.subplots(1, len(groups), figsize=(4.2 * len(groups), 5.4), squeeze=False)
    for (network, domains), panel in zip(groups, panels[0], strict=True):
        mine = [r for r in records if (r.network, r.domains) == (network, domains) and r.method != "plain"]
        mine.sort(key=lambda r: r.time_ratio, reverse=True)
        tints = ["tab:grey" if r.method.startswith(_OTHERS) else "tab:blue" for r in mine]
        names = [r.method if r.every == 1 else f"{r.method}, every {r.every}" for r in mine]
        bars = panel.barh(names, [r.time_ratio for r in mine], color=tints)
        panel.bar_label(bars, fmt="%.2f", padding=2, fontsize=7)
        panel.axvline(1.0, color="black", linewidth=0.8)
        panel.set(title=f"{network}, {domains} domains", xlabel="time of a step, relative to plain")
        panel.set_xlim(0, 1.15 * mine[0].time_ratio)
        panel.tick_params(axis="y", labelsize=7)
    figure.tight_layout()
    return _packed(figure)


def _packed(figure: Any) -> bytes:
    """Return a finished figure as a PNG file."""
    packed = io.BytesIO()
    figure.savefig(packed, format="png", dpi=110)
    _pyplot().close(figure)
    return packed.getvalue()


def _pyplot() -> Any:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    return plt
