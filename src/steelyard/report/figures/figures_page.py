"""All figures of an experiment on one page: a picture small enough for a repository."""

import io
from collections.abc import Sequence

from matplotlib import rc_context
from PIL import Image

from steelyard.report.figures.figure import CARD, INK, ReportFigure

_DPI = 100  # dots per inch; text of 8.5 points is still legible
_COLOURS = 256  # the most that a PNG with a palette holds


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
    page.quantize(_COLOURS).save(content, format="png", optimize=True)
    return content.getvalue()


def _picture(figure: ReportFigure) -> Image.Image:
    """Draw a figure with its title above it."""
    drawn = figure.drawn()
    content = io.BytesIO()
    with rc_context({"text.parse_math": False}):  # names are text, also if they hold a $
        drawn.suptitle(figure.title, color=INK, fontsize=11, x=0.01, ha="left")
        drawn.savefig(content, format="png", dpi=_DPI)
    return Image.open(content).convert("RGB")
