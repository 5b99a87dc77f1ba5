"""The transfer matrix of an audit as a heat map: who helps whom."""

from collections.abc import Mapping, Sequence
from functools import partial
from math import floor, isfinite, log10, sqrt
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from steelyard.imaging.train.audit_record import parse_audit
from steelyard.report.data.names import domain_title
from steelyard.report.figures.figure import INK, LINE, SOFT, TINTS, Panel, ReportFigure
from steelyard.training.audit import Audit

_HELPS, _HARMS = TINTS[1], TINTS[2]  # blue and orange-red, which colour-blind readers tell apart
_DEEPEST, _FAINT = 0.55, 0.25  # opacity of the largest change; factor of the opacity where a change may be chance
_STANDARD_ERRORS = 2.0  # a mean within this many of 0 is faint
_MANY = 8  # domains; with more the cells are narrow
_CELL, _NARROW_CELL = 0.78, 0.6  # inches
_SMALLEST_WIDTH, _SMALLEST_HEIGHT, _MARGINS = 2.9, 1.8, (1.7, 1.2)  # inches
_CHARACTER = 0.09  # inches, the width of a character in the name of a column
_LONGEST_NAME = 16  # characters
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def transfer_figure(audit: Audit | Mapping[str, Any], *, name: str = "transfer") -> ReportFigure:
    """Show how a step for each domain (row) changes the score of each domain (column), as a heat map.

    Args:
        audit: What `balancer.audit()` returns, its `as_dict()`, or the content of a run's audit.json.
        name: Of the figure's files.

    Raises:
        UserError: A dict is not that of an audit.

    >>> from steelyard.training.audit import DomainAudit
    >>> names = ("weight", "share", "loss_scale", "remaining", "own", "given", "received", "presence")
    >>> domains = tuple(DomainAudit(name=name, votes=9, **dict.fromkeys(names, 0.5)) for name in ("a", "b"))
    >>> errors = ((1e-4, 1e-4), (1e-4, 1e-4))
    >>> audit = Audit(domains=domains, transfer=((-3e-3, 1e-3), (0.0, -2e-3)), standard_error=errors, flags=())
    >>> transfer_figure(audit).panels[0].title
    'blue helps, red harms; in units of 10⁻³'
    """
    if not isinstance(audit, Audit):
        audit = parse_audit(audit)
    exponent = _common_exponent(audit.transfer)
    title = "blue helps, red harms"
    if exponent:
        title += f"; in units of 10{str(exponent).translate(_SUPERSCRIPTS)}"
    return ReportFigure(
        name=name,
        title="How a step for one domain changes the score of each",
        caption=(
            "Mean change over the votes; lower scores are better, so negative numbers help. Row: the domain that the "
            "step is for. Column: the domain that is judged, on samples that the step was not taken from. The colour "
            "deepens with the square root of the number. Faint numbers are within two standard errors of 0; a dash "
            "was not measured."
        ),
        panels=(Panel(title=title, draw=partial(_draw, audit=audit, exponent=exponent)),),
        size=_size(len(audit.domains)),
    )


def _common_exponent(matrix: Sequence[Sequence[float]]) -> int:
    """Return the power of ten that brings the largest number of a matrix to 1 or above, and below 10."""
    largest = _largest(matrix)
    if largest == 0:
        return 0
    return floor(log10(largest))


def _largest(matrix: Sequence[Sequence[float]]) -> float:
    """Return the largest size of the finite numbers of a matrix; 0 if there are none."""
    largest = 0.0
    for row in matrix:
        for value in filter(isfinite, row):
            largest = max(largest, abs(value))
    return largest


def _size(domains: int) -> tuple[float, float]:
    """Return the size of the panel in inches: the numbers in the cells must be legible."""
    height = max(_SMALLEST_HEIGHT, _NARROW_CELL * domains)
    return _cell_width(domains) * domains + _MARGINS[0], height + _MARGINS[1]


def _cell_width(domains: int) -> float:
    """Return the width of a cell in inches."""
    if domains > _MANY:
        return _NARROW_CELL
    return max(_SMALLEST_WIDTH / domains, _CELL)


def _draw(axes: Axes, *, audit: Audit, exponent: int) -> None:
    largest = _largest(audit.transfer)
    for row, (means, errors) in enumerate(zip(audit.transfer, audit.standard_error, strict=True)):
        for column, (mean, error) in enumerate(zip(means, errors, strict=True)):
            depth = 0.0
            if isfinite(mean) and largest > 0:
                depth = sqrt(abs(mean) / largest)
            # A comparison with NaN is false: where the error is not known, a change may be chance.
            is_clear = abs(mean) > _STANDARD_ERRORS * error
            colour = _HARMS if mean > 0 else _HELPS
            opacity = _DEEPEST * depth * (1.0 if is_clear else _FAINT)
            axes.add_patch(Rectangle((column, row), 1, 1, facecolor=colour, alpha=opacity, lw=0))
            _write_number(axes, (column + 0.5, row + 0.5), mean, exponent=exponent, is_clear=is_clear)
    _style(axes, [_short(domain_title(domain.name)) for domain in audit.domains])


def _write_number(axes: Axes, centre: tuple[float, float], mean: float, *, exponent: int, is_clear: bool) -> None:
    """Write a cell's number in the middle of it."""
    text = _cell_text(mean, exponent)
    axes.text(*centre, text, color=INK if is_clear else SOFT, fontsize=9.5, ha="center", va="center")


def _cell_text(mean: float, exponent: int) -> str:
    """Return a number in units of a power of ten, with its sign; a dash for NaN.

    >>> _cell_text(-0.00123, -3), _cell_text(-0.000001, -3)
    ('−1.23', '0.00')
    """
    if not isfinite(mean):
        return "–"
    # Divided twice, because ten to the power of a very small exponent is 0.
    half = exponent // 2
    rounded = round(mean / 10.0**half / 10.0 ** (exponent - half), 2)
    if rounded == 0:
        return "0.00"
    return f"{rounded:+.2f}".replace("-", "−")


def _style(axes: Axes, names: Sequence[str]) -> None:
    """Name rows and columns, the first row at the top, and rule thin lines between the cells."""
    count = len(names)
    axes.set_xlim(0, count)
    axes.set_ylim(count, 0)
    axes.grid(visible=False)
    for line in range(count + 1):
        axes.axhline(line, color=LINE, lw=0.7)
        axes.axvline(line, color=LINE, lw=0.7)
    centres = [number + 0.5 for number in range(count)]
    axes.set_yticks(centres, names)
    axes.set_xticks(centres, names)
    if _CHARACTER * max(map(len, names)) > _cell_width(count):
        for label in axes.get_xticklabels():
            label.set(rotation=40, ha="right", rotation_mode="anchor")
    axes.tick_params(length=0)
    axes.set_ylabel("a step for")
    axes.set_xlabel("changes the score of")
    for spine in axes.spines.values():
        spine.set_visible(False)


def _short(name: str) -> str:
    """Return a name with its middle left out if it is long.

    >>> _short("hospital-of-the-north-3")
    'hospita…-north-3'
    """
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[:7]}…{name[-8:]}"
