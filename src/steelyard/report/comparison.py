"""One page that compares a few runs on the same test subjects."""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO

from matplotlib.figure import Figure

from steelyard.imaging.pages import render
from steelyard.report.figures import TITLE
from steelyard.report.runs import RunRecord, mean_and_spread

_METRICS = (("dsc", "DSC"), ("auc", "AUC"), ("lesion_f1", "lesion F1"))


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A picture on the page.

    Args:
        title: Above it.
        caption: Below it.
        content: The file.
        kind: `png` or `jpeg`.
        link: Where to see more.
        wide: Whether it takes the whole width of the page.
    """

    title: str
    caption: str
    content: bytes
    kind: str = "png"
    link: str = ""
    wide: bool = True


def as_png(figure: Figure) -> bytes:
    """Return a figure as PNG."""
    packed = BytesIO()
    figure.savefig(packed, format="png", dpi=130, facecolor=figure.get_facecolor())
    return packed.getvalue()


def headings(runs: Sequence[RunRecord]) -> list[str]:
    """Return the columns of the table: each metric in each domain, and the last weights."""
    domains = runs[0].config.domains
    scored = [f"{title}-{domain[0].upper()}" for title in (title for _, title in _METRICS) for domain in domains]
    return ["method", *scored, f"weight of {TITLE.get(domains[0], domains[0])} at the end"]


def rows(runs: Sequence[RunRecord]) -> list[list[str]]:
    """Return one row per run: the mean over test subjects of each metric in each domain."""
    table = []
    for run in runs:
        cells = [run.method]
        for metric, _ in _METRICS:
            cells += [f"{mean_and_spread(run.scores(domain, metric))[0]:.3f}" for domain in run.config.domains]
        weights = run.weights(run.config.domains[0])
        table.append([*cells, f"{weights[-1]:.2f}" if weights else "–"])
    return table


def answer(runs: Sequence[RunRecord]) -> str:
    """Say in one sentence how the last run's mean Dice compares with the first's, and how little that shows."""
    base, learned = runs[0], runs[-1]
    parts = []
    for domain in base.config.domains:
        gain = mean_and_spread(learned.scores(domain))[0] - mean_and_spread(base.scores(domain))[0]
        parts.append(f"{TITLE.get(domain, domain)} {gain:+.3f}")
    subjects = len(base.scores(base.config.domains[0]))
    return (
        f"{learned.method} against {base.method}, mean Dice: {', '.join(parts)}. One run each and {subjects} test "
        "subjects show that everything works, not which method is better."
    )


def render_comparison(
    runs: Sequence[RunRecord], pictures: Sequence[Picture], *, title: str, lead: str, commands: Sequence[str]
) -> str:
    """Return the page."""
    return render(
        "comparison",
        package=__package__,
        title=title,
        lead=lead,
        answer=answer(runs),
        headings=headings(runs),
        rows=rows(runs),
        pictures=[vars(picture) | {"content": b64encode(picture.content).decode()} for picture in pictures],
        commands=commands,
        failures=(),
    )
