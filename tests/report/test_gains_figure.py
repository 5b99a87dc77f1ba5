"""The figure of gains: a panel a problem, an interval a method."""

import math

from steelyard.report.figures.gains import Gain, gains_figure, ordered


def gain(panel: str = "digits", row: str = "plain", method: str = "evidence", reach: float = 0.01) -> Gain:
    return Gain(panel=panel, row=row, method=method, mean=0.02, reach=reach)


def test_each_problem_has_a_panel_and_each_method_one_name():
    gains = [gain(), gain(method="sweep"), gain(row="noisy"), gain(panel="wine", reach=math.nan)]
    figure = gains_figure(gains, title="Gains", caption="")
    assert [panel.title for panel in figure.panels] == ["digits", "wine"]
    digits, wine = figure.drawn().axes
    assert [text.get_text() for text in digits.get_legend().get_texts()] == ["evidence", "sweep"]
    assert [text.get_text() for text in digits.get_yticklabels()] == ["plain", "noisy"]
    assert len(digits.containers) == 3
    assert len(wine.containers) == 1
    assert "$" not in "".join(figure.inline_panels())


def test_intervals_have_the_stated_reach():
    (axes,) = gains_figure([gain(reach=0.005)], title="", caption="").drawn().axes
    (interval,) = axes.containers[0].lines[2]
    ((left, _), (right, _)) = interval.get_segments()[0]
    assert (round(left, 6), round(right, 6)) == (0.015, 0.025)


def test_gains_are_in_the_order_of_the_methods():
    gains = [gain(method=method, row=row) for method in ("sweep", "uw", "evidence") for row in ("small", "noisy")]
    shown = ordered(gains, ("evidence", "sweep"))
    assert [(member.row, member.method) for member in shown] == [
        ("noisy", "evidence"),
        ("noisy", "sweep"),
        ("small", "evidence"),
        ("small", "sweep"),
    ]
