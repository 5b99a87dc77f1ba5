"""What all figures share: colours, axes, panels, bands, and how they become files and parts of a page."""

import io
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from steelyard.files.atomic import write_bytes
from steelyard.files.destinations import check_file

MARK = "figure by steelyard"
"""Text near the beginning of every figure's file, which tells it from other files."""

INK, SOFT, LINE, CARD = "#1c2024", "#5d666f", "#dfe2e5", "#ffffff"
"""The colours of text, secondary text, rules and background."""

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
"""The colours of series, on a light background."""

DOMAIN_TINT = {"flair": TINTS[2], "t1": TINTS[1]}
"""The colours of domains."""

DARK = {INK: "#e8eaed", SOFT: "#9aa4ad", LINE: "#2c3338", CARD: "#181c1f"} | dict(_TINTS)
"""For each colour the one on a dark background."""

Curve = NDArray[np.float64]

# Names of domains, methods and subjects are text, also if they hold a $.
_PLAIN_TEXT: dict[Any, Any] = {"text.parse_math": False}
_PANEL_SIZE = (4.6, 3.1)  # inches; text of 9 pt reads well on a phone at this size
_ACROSS = 3  # panels side by side in a file
_MOST_POINTS = 400  # of a line; more cannot be seen, and take space
_SPREAD = "± 1 s.d."
_PAGE_DPI = 100  # dots per inch; text of 8.5 points is still legible
_PAGE_COLOURS = 256  # the most that a PNG with a palette holds


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One pair of axes.

    Args:
        title: Above it; text, not mathematics.
        draw: A function that draws into the axes.
    """

    title: str
    draw: Callable[[Axes], None]


@dataclass(frozen=True, kw_only=True)
class ReportFigure:
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
    size: tuple[float, float] = _PANEL_SIZE

    def drawn(self, panels: Sequence[Panel] | None = None) -> Figure:
        """Draw all panels, or some, side by side on a light background."""
        panels = panels or self.panels
        columns = min(len(panels), _ACROSS)
        rows = ceil(len(panels) / columns)
        size = (self.size[0] * columns, self.size[1] * rows)
        figure = Figure(figsize=size, facecolor=CARD, edgecolor=CARD, layout="constrained")
        with rc_context(_PLAIN_TEXT):
            for number, panel in enumerate(panels, start=1):
                axes = figure.add_subplot(rows, columns, number)
                _style_axes(axes, panel.title)
                panel.draw(axes)
        return figure

    def inline_panels(self) -> list[str]:
        """Return each panel as an SVG element whose colours follow the page's, light or dark."""
        panels = []
        for panel in self.panels:
            svg = _file_content(self.drawn([panel]), "svg", salt=self.name)
            panels.append(_inline_svg(svg, panel.title))
        return panels

    def check(self, folder: Path) -> None:
        """Refuse to replace files that are not figures by steelyard; change nothing.

        Raises:
            UserError: There is such a file.
        """
        for kind in ("svg", "png"):
            check_file(folder / f"{self.name}.{kind}", mark=MARK)

    def save(self, folder: Path) -> None:
        """Write the figure as SVG and PNG."""
        figure = self.drawn()
        for kind in ("svg", "png"):
            write_bytes(folder / f"{self.name}.{kind}", _file_content(figure, kind, salt=self.name))


def method_colours(methods: Iterable[str]) -> dict[str, str]:
    """Return a colour for each method, the same in every figure of a page."""
    colours = {}
    for number, method in enumerate(dict.fromkeys(methods)):
        colours[method] = TINTS[number % len(TINTS)]
    return colours


def domain_colour(domain: str, number: int) -> str:
    """Return the colour of a domain; one without its own gets one by its number."""
    return DOMAIN_TINT.get(domain, TINTS[(number + 3) % len(TINTS)])


def add_legend(axes: Axes) -> None:
    """Add a legend, if any series has a label."""
    if axes.get_legend_handles_labels()[1]:
        axes.legend(frameon=False, labelcolor=INK, fontsize=8.5)


def mean_band(curves: Sequence[Sequence[float]]) -> tuple[Curve, Curve]:
    """Return mean and s.d. at each point, over the curves that are long enough; the s.d. of one is NaN.

    >>> mean, spread = mean_band([[1.0, 2.0, 5.0], [3.0, 2.0]])
    >>> mean.tolist(), [round(value, 3) for value in spread.tolist()]
    ([2.0, 2.0, 5.0], [1.414, 0.0, nan])
    """
    longest = max(map(len, curves), default=0)
    stacked = np.full((len(curves), longest), np.nan)
    for row, curve in zip(stacked, curves, strict=True):
        row[: len(curve)] = curve
    defined = np.isfinite(stacked)
    count = defined.sum(axis=0)
    total = np.where(defined, stacked, 0).sum(axis=0)
    mean = np.divide(total, count, out=np.full(longest, np.nan), where=count > 0)
    squares = np.where(defined, stacked - mean, 0) ** 2
    variance = np.divide(squares.sum(axis=0), count - 1, out=np.full(longest, np.nan), where=count > 1)
    return mean, np.sqrt(variance)


def draw_band(axes: Axes, curves: Sequence[Sequence[float]], *, colour: str, label: str) -> None:
    """Draw the mean of curves as a line and one s.d. to either side as a band."""
    mean, spread = mean_band(curves)
    if not len(mean):
        return
    points = drawn_points(len(mean))
    axes.plot(points + 1, mean[points], color=colour, label=label, lw=1.6)
    if len(curves) > 1:
        # One entry in the legend is enough for all bands.
        band_label: str | None = _SPREAD
        if _SPREAD in axes.get_legend_handles_labels()[1]:
            band_label = None
        lower, upper = (mean - spread)[points], (mean + spread)[points]
        axes.fill_between(points + 1, lower, upper, color=colour, alpha=0.22, lw=0, label=band_label)


def drawn_points(length: int) -> NDArray[np.int64]:
    """Return the points of a line that are drawn, first and last among them."""
    return np.unique(np.linspace(0, length - 1, min(length, _MOST_POINTS)).round().astype(np.int64))


def figures_page(figures: Sequence[ReportFigure]) -> bytes:
    """Return figures as one PNG, one below the other; the same figures give the same bytes."""
    pictures = [_picture(figure) for figure in figures if figure.panels]
    width = max(picture.width for picture in pictures)
    page = Image.new("RGB", (width, sum(picture.height for picture in pictures)), CARD)
    top = 0
    for picture in pictures:
        page.paste(picture, (0, top))
        top += picture.height
    content = io.BytesIO()
    page.quantize(_PAGE_COLOURS).save(content, format="png", optimize=True)
    return content.getvalue()


def css_variables(*, dark: bool) -> str:
    """Return the declarations of the colours that inline figures refer to."""
    declarations = []
    for light_colour, dark_colour in DARK.items():
        colour = dark_colour if dark else light_colour
        declarations.append(f"{_variable(light_colour)}: {colour};")
    return " ".join(declarations)


def _variable(colour: str) -> str:
    return f"--c{colour.removeprefix('#')}"


def _style_axes(axes: Axes, title: str) -> None:
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


def _file_content(figure: Figure, kind: str, *, salt: str) -> bytes:
    """Return the bytes of an SVG or PNG file; the same figure always gives the same bytes."""
    # Without a date, and with a fixed salt for the identifiers. Text of an SVG stays text.
    settings = _PLAIN_TEXT | {"svg.fonttype": "none", "svg.hashsalt": salt}
    metadata: dict[str, str | None] = {"Software": MARK}
    if kind == "svg":
        metadata = {"Date": None, "Title": MARK}
    content = io.BytesIO()
    with rc_context(settings), warnings.catch_warnings():
        # The reader's browser has letters that matplotlib's font lacks.
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from font")
        figure.savefig(content, format=kind, dpi=160, metadata=metadata)
    return content.getvalue()


def _inline_svg(svg: bytes, title: str) -> str:
    """Return an SVG file as an element of a page: without size, font and identifiers, with the page's colours."""
    text = svg.decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r' id="[A-Za-z0-9.]+_\d+"', "", text)
    text = re.sub(r"font(-family)?: ([\d.]+px) [^;\"]*", r"font-size: \2", text)
    for colour in DARK:
        text = re.sub(rf"{colour}\b", f"var({_variable(colour)})", text, flags=re.IGNORECASE)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    label = title.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    return text.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)


def _picture(figure: ReportFigure) -> Image.Image:
    """Draw a figure with its title above it."""
    drawn = figure.drawn()
    content = io.BytesIO()
    with rc_context(_PLAIN_TEXT):
        drawn.suptitle(figure.title, color=INK, fontsize=11, x=0.01, ha="left")
        drawn.savefig(content, format="png", dpi=_PAGE_DPI)
    return Image.open(content).convert("RGB")
