"""What all figures share: colours, axes, panels, and how they become files and parts of a page."""

import io
import re
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from steelyard.files.atomic import write_bytes
from steelyard.files.destinations import check_file

MARK = "figure by steelyard"
"""What the beginning of every figure's file holds."""

TITLE = {"flair": "FLAIR", "t1": "T1"}
"""Domains as people write them."""

INK, SOFT, LINE, CARD = "#1c2024", "#5d666f", "#dfe2e5", "#ffffff"
"""Text, what stands back, rules and background."""

_TINTS = (
    ("#57606a", "#a8b2bd"),
    ("#0b6bcb", "#6fb7ff"),
    ("#c2410c", "#ff9d5c"),
    ("#15803d", "#7fd38a"),
    ("#7e3fbf", "#c79bff"),
    ("#a16207", "#ffd34d"),
    ("#be123c", "#ff7c8f"),
    ("#0e7490", "#4cd7f0"),
    ("#9d174d", "#ff8ac4"),
    ("#4d7c0f", "#b5e05a"),
    ("#1e3a8a", "#93a5ff"),
)
TINTS = tuple(light for light, _ in _TINTS)
"""What series are told apart by."""

DOMAIN_TINT = {"flair": TINTS[2], "t1": TINTS[1]}
"""What domains are told apart by."""

DARK = {INK: "#e8eaed", SOFT: "#9aa4ad", LINE: "#2c3338", CARD: "#181c1f"} | dict(_TINTS)
"""Each colour's counterpart on dark."""

_PLAIN: dict[Any, Any] = {
    "text.parse_math": False
}  # names of domains, methods and subjects are text, whatever signs they hold

_SHOWN_SIZE = (4.6, 3.1)  # inches; text of 9 pt reads well on a phone at this size
_ACROSS = 3  # panels side by side in a file


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One pair of axes.

    Args:
        title: Above it; text, not mathematics.
        draw: Fills it.
    """

    title: str
    draw: Callable[[Axes], None]


@dataclass(frozen=True, kw_only=True)
class Plate:
    """A figure of one or more panels.

    Args:
        name: Of its files.
        title: What it shows.
        caption: How to read it.
        panels: Its parts; a page shows each on its own, so that they wrap.
        size: Of a panel, in inches.
    """

    name: str
    title: str
    caption: str
    panels: tuple[Panel, ...]
    size: tuple[float, float] = _SHOWN_SIZE

    def figure(self, panels: Iterable[Panel] | None = None) -> Figure:
        """Draw all panels, or some, side by side on light."""
        chosen = tuple(self.panels if panels is None else panels)
        columns = min(len(chosen), _ACROSS)
        rows = ceil(len(chosen) / columns)
        figure = Figure(
            figsize=(self.size[0] * columns, self.size[1] * rows), facecolor=CARD, edgecolor=CARD, layout="constrained"
        )
        with rc_context(_PLAIN):
            for place, panel in enumerate(chosen):
                axes = figure.add_subplot(rows, columns, place + 1)
                _dress(axes, panel.title)
                panel.draw(axes)
        return figure

    def inline(self) -> list[str]:
        """Return each panel as an SVG element whose colours follow the page's, light or dark."""
        return [_inline(_packed(self.figure([panel]), "svg", salt=self.name), panel.title) for panel in self.panels]

    def check(self, folder: Path) -> None:
        """Refuse to replace files that are not figures of ours; change nothing.

        Raises:
            UserError: There is such a file.
        """
        for kind in ("svg", "png"):
            check_file(folder / f"{self.name}.{kind}", mark=MARK)

    def save(self, folder: Path) -> None:
        """Write the figure as SVG and PNG."""
        figure = self.figure()
        for kind in ("svg", "png"):
            write_bytes(folder / f"{self.name}.{kind}", _packed(figure, kind, salt=self.name))


def colours(methods: Iterable[str]) -> dict[str, str]:
    """Return a colour for each method, the same in every figure of a page."""
    return {method: TINTS[place % len(TINTS)] for place, method in enumerate(dict.fromkeys(methods))}


def titled(domain: str) -> str:
    """Return a domain's name as people write it."""
    return TITLE.get(domain, domain)


def legend(axes: Axes, **how: object) -> None:
    """Add a legend, if there is anything to tell apart."""
    if axes.get_legend_handles_labels()[1]:
        settings = {"frameon": False, "labelcolor": INK, "fontsize": 8.5} | how
        axes.legend(**settings)


def css_variables(*, dark: bool) -> str:
    """Return the declarations of the colours that inline figures refer to."""
    return " ".join(f"{_variable(light)}: {shade if dark else light};" for light, shade in DARK.items())


def _variable(colour: str) -> str:
    return f"--c{colour.removeprefix('#')}"


def _dress(axes: Axes, title: str) -> None:
    axes.set_facecolor("none")
    axes.set_title(title, color=INK, fontsize=10, loc="left")
    axes.tick_params(colors=SOFT, labelsize=8.5, length=2)
    axes.xaxis.label.set_color(SOFT)
    axes.yaxis.label.set_color(SOFT)
    axes.xaxis.label.set_fontsize(9)
    axes.yaxis.label.set_fontsize(9)
    axes.grid(axis="y", color=LINE, lw=0.7)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(LINE)


def _packed(figure: Figure, kind: str, *, salt: str) -> bytes:
    packed = io.BytesIO()
    # Text stays text, and neither a date nor chance makes two files of one figure differ.
    with rc_context(_PLAIN | {"svg.fonttype": "none", "svg.hashsalt": salt}), warnings.catch_warnings():
        # Text stays text: the reader's browser has letters that matplotlib's font lacks.
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from font")
        metadata = {"Date": None, "Title": MARK} if kind == "svg" else {"Software": MARK}
        figure.savefig(packed, format=kind, dpi=160, metadata=metadata)
    return packed.getvalue()


def _inline(svg: bytes, title: str) -> str:
    text = svg.decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r' id="[A-Za-z0-9.]+_\d+"', "", text)
    text = re.sub(r"font(-family)?: ([\d.]+px) [^;\"]*", r"font-size: \2", text)
    for colour in DARK:
        text = re.sub(rf"{colour}\b", f"var({_variable(colour)})", text, flags=re.IGNORECASE)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    named = title.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    return text.replace("<svg", f'<svg role="img" aria-label="{named}"', 1)
