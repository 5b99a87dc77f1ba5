from dataclasses import replace

import pytest

from steelyard.errors import UserError
from steelyard.experiments.grids import DESIGNS, GridConfig, design_named, paper, read_availability, smoke


def test_the_papers_grid_has_every_row_of_its_tables():
    cells = paper().cells()
    rows = {(cell.model, cell.availability, cell.method) for cell in cells}
    assert len(rows) == 2 * 2 * 9 + 2
    assert len(cells) == len(rows) * 25 == len(set(cells))
    single = {(model, number, method.name) for model, number, method in rows if method.is_single}
    assert single == {("unet", None, "flair-only"), ("unet", None, "t1-only")}


@pytest.mark.parametrize("name", DESIGNS)
def test_every_design_can_be_had_by_name(name):
    assert design_named(name).cells()


def test_any_number_of_domains():
    training = replace(smoke().training, domains=("flair@A", "flair@B", "t1"), method="equal", batch_size=6)
    methods = ("equal", "conservative-25", "fixed-0.2-0.3-0.5", "flair@A-only")
    grid = GridConfig(training=training, models=("unet",), methods=methods)
    names = {"equal", "conservative-25", "fixed-20-30-50", "flair@A-only"}
    assert {cell.method.name for cell in grid.cells()} == names
    with pytest.raises(UserError, match="F50-T50 weighs flair and t1"):
        replace(grid, methods=("F50-T50",))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"folds": 1}, "folds must be at least 2"),
        ({"test_folds": (3,)}, "fold must lie within 0 to 2; got 3"),
        ({"repeats": ()}, "repeats must name at least one"),
        ({"methods": ("F50-T50", "equal")}, "none twice"),
        ({"methods": ("Ours",)}, "method must be of the form"),
        ({"availability": (0,)}, "availability must be all or at least 1"),
    ],
)
def test_a_grid_that_cannot_be_is_refused(changes, message):
    with pytest.raises(UserError, match=message):
        replace(smoke(), **changes)


def test_names_that_are_none_are_refused():
    with pytest.raises(UserError, match="design must be one of paper, desk, glioma, smoke; got 'thesis'"):
        design_named("thesis")
    with pytest.raises(UserError, match="availability must be all, or a number such as 8F; got 'some'"):
        read_availability("some")


def test_only_the_scarce_contrast_gives_its_letter():
    assert [read_availability(text) for text in ("8F", "8", "all")] == [8, 8, None]
    assert read_availability("8T", scarce="t1") == 8
    with pytest.raises(UserError, match="availability 8T: only flair scans can be made scarce; write 8F"):
        read_availability("8T")
