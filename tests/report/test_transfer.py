from math import nan

import pytest
from matplotlib.colors import to_hex

from audits import audit_of
from steelyard.errors import UserError
from steelyard.imaging.train.audit_record import describe_audit
from steelyard.report.figures.figure import INK, SOFT, TINTS
from steelyard.report.figures.transfer import transfer_figure

BLUE, RED = TINTS[1], TINTS[2]
MATRIX = [[-4e-3, 1e-3, -1.5e-4], [2e-3, -1e-3, nan], [1e-5, 0.0, -5e-3]]


def cells(figure):
    """The text, the colour of the text, the colour and the opacity of every cell, by row and column."""
    axes = figure.drawn().axes[0]
    by_position = {}
    for text, patch in zip(axes.texts, axes.patches, strict=True):
        column, row = patch.get_xy()
        assert text.get_position() == (column + 0.5, row + 0.5)
        by_position[row, column] = (
            text.get_text(),
            text.get_color(),
            to_hex(patch.get_facecolor()),
            patch.get_alpha(),
        )
    return by_position


def test_rows_are_steps_columns_are_scores_and_numbers_share_a_power_of_ten():
    figure = transfer_figure(audit_of(("flair", "t1", "c"), MATRIX))
    (panel,) = figure.panels
    assert panel.title == "blue helps, red harms; in units of 10⁻³"
    axes = figure.drawn().axes[0]
    assert (axes.get_ylabel(), axes.get_xlabel()) == ("a step for", "changes the score of")
    assert [label.get_text() for label in axes.get_yticklabels()] == ["FLAIR", "T1", "c"]
    assert axes.get_ylim() == (3, 0)  # the first row is at the top
    drawn = cells(figure)
    assert [drawn[0, column][0] for column in range(3)] == ["−4.00", "+1.00", "−0.15"]
    assert [drawn[1, column][0] for column in range(3)] == ["+2.00", "−1.00", "–"]
    assert [drawn[2, column][0] for column in range(3)] == ["+0.01", "0.00", "−5.00"]


def test_blue_helps_red_harms_and_what_may_be_chance_is_faint():
    drawn = cells(transfer_figure(audit_of("abc", MATRIX)))
    assert [drawn[0, column][2] for column in range(3)] == [BLUE, RED, BLUE]
    assert drawn[2, 2][3] == max(opacity for *_, opacity in drawn.values())
    assert drawn[0, 1][3] == drawn[1, 1][3] > 0  # harm and help of one size are as deep
    assert drawn[0, 1][1] == INK
    assert drawn[0, 2][1] == SOFT  # 1.5 standard errors
    faint = cells(transfer_figure(audit_of("abc", MATRIX, 6e-4)))
    assert faint[0, 1][1] == SOFT
    assert faint[0, 1][3] < drawn[0, 1][3] / 2
    assert drawn[1, 2][3] == 0  # not measured
    unknown = cells(transfer_figure(audit_of("abc", MATRIX, nan)))
    assert {colour for _, colour, *_ in unknown.values()} == {SOFT}


@pytest.mark.parametrize("count", [2, 16])
def test_numbers_fit_into_their_cells(count):
    names = [f"a hospital with a long name {number}" for number in range(count)]
    transfer = [[-9.99e-7] * count for _ in names]
    figure = transfer_figure(audit_of(names, transfer, 1e-9)).drawn()
    figure.draw_without_rendering()
    axes = figure.axes[0]
    cell = axes.get_window_extent().width / count, axes.get_window_extent().height / count
    for text in axes.texts:
        extent = text.get_window_extent()
        assert extent.width < 0.9 * cell[0]
        assert extent.height < 0.9 * cell[1]
    labels = axes.get_yticklabels()
    assert len({label.get_text() for label in labels}) == count
    assert labels[0].get_window_extent().x0 >= 0


def test_a_dict_will_do_and_gives_the_same_files(tmp_path):
    audit = audit_of("abc", MATRIX)
    for number, source in enumerate((audit, audit.as_dict(), describe_audit(audit))):
        transfer_figure(source).save(tmp_path / str(number))
    names = {path.name for path in (tmp_path / "0").iterdir()}
    assert names == {"transfer.svg", "transfer.png"}
    for name in names:
        contents = {(tmp_path / str(number) / name).read_bytes() for number in range(3)}
        assert len(contents) == 1
    with pytest.raises(UserError, match="domains must be a list; got None"):
        transfer_figure({})


@pytest.mark.parametrize("value", [0.0, nan, 3.4e38, 1e-300])
def test_extreme_numbers_are_drawn(value):
    figure = transfer_figure(audit_of("ab", [[value] * 2] * 2))
    assert len(cells(figure)) == 4
    expected = {0.0: "0.00", 3.4e38: "+3.40", 1e-300: "+1.00"}.get(value, "–")
    assert cells(figure)[0, 0][0] == expected
