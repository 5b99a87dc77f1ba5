from dataclasses import replace
from math import hypot

import numpy as np
import pytest
import torch

from steelyard.errors import UserError
from steelyard.imaging.datasets.prepared import read_prepared
from steelyard.imaging.networks.paper import cross_entropy_minus_dice
from steelyard.imaging.runs.run_folder import RunFolder
from steelyard.probing.vote_probe import halve
from steelyard.report.data.predictions import predict_on
from steelyard.report.data.runs import by_method, read_runs
from steelyard.report.data.steps import gather_steps
from steelyard.report.figures.curves import learning_figure, weights_figure
from steelyard.report.figures.figure import INK, Panel, ReportFigure, method_colours
from steelyard.report.figures.geometry import geometry_figure
from steelyard.report.figures.scans import scans_figure
from steelyard.report.figures.scores import scores_figure, trade_off_figure
from steelyard.report.statistics.gradient_geometry import draw_batch, measure_geometry
from steelyard.report.statistics.posterior import credible_band, posteriors


@pytest.fixture(scope="module")
def records(run_folder):
    return read_runs([run_folder])


@pytest.fixture(scope="module")
def tints(records):
    return method_colours(by_method(records))


@pytest.fixture(scope="module")
def measured(records, cohort):
    return measure_geometry(records[-1], read_prepared(cohort))


def test_the_posterior_of_the_votes_is_the_one_the_run_took_its_weights_from(records):
    modes = [posterior.mode[0] for posterior in posteriors(records[-1])]
    assert modes == pytest.approx(records[-1].step_weights("flair"))


def test_the_window_forgets_old_votes(records):
    steps = [{"vote": "flair"}] * 30 + [{"vote": ""}] + [{"vote": "t1"}] * 25
    run = replace(records[-1], epochs=[], steps=gather_steps(steps), metrics=[])
    counted = [posterior.concentration for posterior in posteriors(run)]
    assert counted[0] == (6.0, 5.0)
    assert counted[29] == counted[30] == (30.0, 5.0)
    assert counted[-1] == (5.0, 30.0)
    low, high = credible_band(run, "flair")
    assert low[0] < 6 / 11 < high[0]
    assert high[-1] < 0.5 < low[29]


def test_the_weights_of_several_runs_are_a_line_a_band_and_a_credible_interval(records, tints):
    figure = weights_figure(records, "flair", tints=tints)
    assert [panel.title for panel in figure.panels] == ["conservative-25", "fixed weights"]
    axes = figure.drawn().axes[0]
    mean = np.mean([run.step_weights("flair") for run in records[1:]], axis=0)
    assert axes.lines[1].get_ydata() == pytest.approx(mean)
    edges = [np.mean([credible_band(run, "flair")[side] for run in records[1:]], axis=0) for side in (0, 1)]
    spread, credible = (collection.get_paths()[0].vertices[:, 1] for collection in axes.collections)
    assert (credible.min(), credible.max()) == pytest.approx((edges[0].min(), edges[1].max()))
    assert (spread.min(), spread.max()) != pytest.approx((credible.min(), credible.max()))
    assert weights_figure(records[:1], "flair", tints=tints).panels == ()
    single = weights_figure(records[:2], "flair", tints=tints).drawn().axes[0]
    assert [collection.get_label() for collection in single.collections] == ["95 % credible"]


def test_a_method_is_where_its_means_are(records, tints):
    axes = trade_off_figure(records, ("flair", "t1"), tints=tints).drawn().axes[0]
    placed = {text.get_text(): text.xy for text in axes.texts}
    expected = [np.mean([run.scores(domain) for run in records[1:]]) for domain in ("flair", "t1")]
    assert placed["conservative-25"] == pytest.approx(expected)
    assert set(placed) == {"equal", "conservative-25"}


def test_the_front_is_of_fixed_weights_alone(records):
    def named(method, **dsc):
        metrics = [row | {"dsc": str(dsc[row["domain"]])} for row in records[0].metrics]
        return replace(records[0], method=method, metrics=metrics)

    runs = [
        named("equal", flair=0.5, t1=0.5),
        named("fixed-90-10", flair=0.6, t1=0.3),
        named("group-dro", flair=0.9, t1=0.9),
        named("t1-only", flair=0.1, t1=0.8),
    ]
    axes = trade_off_figure(runs, ("flair", "t1"), tints=dict.fromkeys(by_method(runs), "C0")).drawn().axes[0]
    assert [line.get_marker() for line in axes.lines if line.get_marker() in ("s", "o", "^")] == ["s", "s", "o", "^"]
    (front,) = (line for line in axes.lines if len(line.get_xdata()) > 1)
    assert front.get_xydata().tolist() == [[0.5, 0.5], [0.6, 0.3]]


def test_curves_and_scores_have_a_panel_for_each_method_and_domain(records, tints):
    learning = learning_figure(records)
    assert [panel.title for panel in learning.panels] == ["equal", "conservative-25"]
    assert learning.drawn().axes[0].lines[1].get_ydata() == pytest.approx(records[0].validation("t1"))
    assert [panel.title for panel in scores_figure(records, tints=tints).panels] == ["Dice on FLAIR", "Dice on T1"]


def test_the_plane_keeps_lengths_and_what_the_gradients_do(records, cohort, measured):
    run = records[-1]
    directory = RunFolder(run.path)
    batch = draw_batch(read_prepared(cohort), run.config, split=directory.split, epoch=len(run.epochs))
    halves = halve(batch)
    network = directory.network().double()

    def tested():
        pairs = list(halves.tests.values())
        with torch.no_grad():
            losses = [cross_entropy_minus_dice(network(images.double()), masks.double()) for images, masks in pairs]
        return sum(losses).item()

    before = tested()
    images, masks = halves.trains["t1"]
    cross_entropy_minus_dice(network.train()(images.double()), masks.double()).backward()
    length = torch.cat([parameter.grad.flatten() for parameter in network.parameters()]).norm()
    assert hypot(*measured.gradients[1]) == pytest.approx(float(length), rel=1e-3)
    fresh = directory.network().double()
    rate = 1e-6
    with torch.no_grad():
        for parameter, other in zip(fresh.parameters(), network.parameters(), strict=True):
            parameter -= rate * other.grad
    network = fresh
    assert (before - tested()) / rate == pytest.approx(measured.along[1], rel=0.02)
    assert measured.weights[0] == run.step_weights("flair")[-1]
    assert hypot(*measured.other_half) <= measured.other_norm


def test_the_geometry_states_what_was_measured(records, cohort, measured):
    figure = geometry_figure(measured, method="conservative-25")
    assert f"{hypot(*measured.gradients[0]):.3g}" in figure.caption
    assert len(figure.drawn().axes[0].texts) == 4
    single = replace(records[0], method="t1-only")
    with pytest.raises(UserError, match="a run on one domain"):
        measure_geometry(single, read_prepared(cohort))


def test_the_scans_are_shown_five_times(records, cohort):
    subject = next(one for one in read_prepared(cohort).subjects if one.key in records[0].subjects)
    shown = predict_on(subject, records)
    assert list(shown.masks) == ["equal", "conservative-25"]
    figure = scans_figure(shown, method="conservative-25", title="T")
    assert [panel.title for panel in figure.panels] == ["FLAIR", "T1", "manual mask", "found on FLAIR", "found on T1"]
    plain, marked = (figure.drawn().axes[place].images[0].get_array() for place in (0, 2))
    changed = (plain != marked).any(axis=2)
    height = np.argmax(shown.volumes.wmh.voxels.sum(axis=(0, 1)))
    assert changed.sum() == shown.volumes.wmh.voxels[..., height].sum()


def test_a_figure_is_kept_as_vectors_and_pixels_and_follows_the_page(tmp_path):
    figure = ReportFigure(
        name="p", title="T", caption="c", panels=(Panel(title="$a <b>", draw=lambda axes: axes.plot([0, 1])),)
    )
    figure.save(tmp_path)
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    drawn = (tmp_path / "p.svg").read_text()
    assert INK in drawn
    figure.save(tmp_path)
    assert (tmp_path / "p.svg").read_text() == drawn
    (inline,) = figure.inline_panels()
    assert inline.startswith("<svg")
    assert INK not in inline
    assert "var(--c1c2024)" in inline
    assert "$a &lt;b&gt;</text>" in inline
