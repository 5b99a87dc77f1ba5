"""The cost of a step against the number of domains, as a picture."""

from collections.abc import Sequence
from pathlib import Path

from steelyard.experiments.benchmark import Record


def draw(records: Sequence[Record], out: Path) -> None:
    """One panel for each network that was measured with several numbers of domains."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    voting = [r for r in records if r.every == 1 and not r.method.startswith(("torchjd", "higher", "Gramian"))]
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
    figure.savefig(out, dpi=110)
    plt.close(figure)
