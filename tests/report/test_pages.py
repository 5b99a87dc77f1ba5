import base64
import hashlib
import io
import re
import shutil

import numpy as np
import pytest
from PIL import Image

from steelyard.errors import UserError
from steelyard.files.records import as_csv, read_rows
from steelyard.imaging.datasets.prepared import read_prepared
from steelyard.imaging.runs.curves import write_curves
from steelyard.imaging.runs.method import Method
from steelyard.imaging.scans.volumes import canonical
from steelyard.report.data.predictions import predict_on
from steelyard.report.data.runs import read_run, read_runs
from steelyard.report.html.assembly import Scans, assemble
from steelyard.report.html.experiment_report import report_on
from steelyard.report.html.page import Picture, Report, render_report
from steelyard.report.html.viewer import pack_subject
from steelyard.report.tables.table import PageTable

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


@pytest.fixture(scope="module")
def records(run_folder):
    return read_runs([run_folder])


@pytest.fixture(scope="module")
def shown(records, cohort):
    subject = next(one for one in read_prepared(cohort).subjects if one.key in records[0].subjects)
    return predict_on(subject, records[:1])


def opened(url):
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))))


def test_the_viewers_pictures_hold_the_masks_to_the_voxel(shown):
    packed = pack_subject(shown)
    width, height, depth = packed["size"]
    bits = opened(packed["masks"]["equal"]) // 32
    manual = canonical(shown.volumes.wmh).voxels[shown.box]
    for level in range(depth):
        row, column = divmod(level, packed["columns"])
        tile = bits[row * height : (row + 1) * height, column * width : (column + 1) * width]
        assert ((tile & 1) == manual[:, ::-1, level].T).all()
        for bit, domain in ((2, "flair"), (4, "t1")):
            assert ((tile & bit > 0) == shown.masks["equal"][domain][shown.box][:, ::-1, level].T).all()
    assert packed["start"] == np.argmax(manual.sum(axis=(0, 1)))
    assert opened(packed["scans"]["FLAIR"]).shape == bits.shape
    assert packed["scores"]["equal"]["FLAIR"] == pytest.approx(shown.runs["equal"].scores("flair")[0], abs=5e-4)


def test_whatever_a_name_holds_is_text(shown):
    table = PageTable(title=HOSTILE, headings=[HOSTILE], rows=[[HOSTILE]], note=HOSTILE)
    page = render_report(
        Report(
            title=HOSTILE,
            lead=HOSTILE,
            answer=[HOSTILE],
            tables=[table],
            pictures=[Picture(title=HOSTILE, caption=HOSTILE, content=b"x")],
            subjects=[pack_subject(shown) | {"name": HOSTILE}],
            subjects_note=HOSTILE,
            scores=[table],
            settings=[table],
            commands=[HOSTILE],
        )
    )
    assert "alert(1)</script" not in page
    assert "<img src=x" not in page
    assert page.count("<script") == page.count("</script>") == 2


def test_the_policy_allows_this_script_and_no_network(records):
    page = render_report(assemble(records, title="T", lead="L"))
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    policy = policy.replace("&#39;", "'")
    (script,) = re.findall(r"<script>(.*?)</script>", page, flags=re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy.startswith(f"default-src 'none'; script-src 'sha256-{digest}';")
    assert not re.search(r"(src|href)=\"(?!data:|#)", page)


def test_without_data_there_is_no_viewer_and_the_page_says_so(records):
    report = assemble(records, title="T", lead="L")
    assert not report.subjects
    page = render_report(report)
    assert 'class="viewer"' not in page
    assert "Without --data there are no scans here" in page
    assert page.index("conservative-25 against equal") < page.index("<table")


def test_as_many_subjects_are_shown_as_wanted_and_the_page_says_so(records, cohort, tmp_path):
    report = assemble(records, scans=Scans(data=cohort, subjects=1), title="T", lead="L")
    assert [one["name"] for one in report.subjects] == records[0].subjects[:1]
    assert report.subjects_note.startswith("1 of 1 test subjects")
    assert {"scans", "geometry", "trade_off", "scores", "weights", "learning"} == {
        figure.name for figure in report.figures
    }
    with pytest.raises(UserError, match="no run that was tested is of method shift-conservative"):
        assemble(records, scans=Scans(data=cohort, methods=("shift-conservative",)), title="T", lead="L")


@pytest.fixture
def experiment(run_folder, tmp_path):
    """An experiment's folder with run folders, results and curves."""
    out = tmp_path / "out"
    runs = shutil.copytree(run_folder, out / "runs" / run_folder.name)
    (out / "experiment.json").write_text('{"epochs": 2, "splits": [["secret"]]}')
    results, curves = [], []
    for path in sorted(runs.glob("*/fold-*_repeat-*")):
        (path / "steps.csv").unlink()  # raw runs that are kept have no steps
        key = read_run(path).key.row
        results += [key | row for _, row in read_rows(path / "metrics.csv") if row.pop("part") == "test"]
        curves += [key | row for _, row in read_rows(path / "epochs.csv")]
    (out / "results.csv").write_text(as_csv(results))
    write_curves(out, curves)
    return out


def test_an_experiment_without_run_folders_gives_the_same_tables_and_figures(experiment, cohort, tmp_path):
    before = report_on(experiment, None)
    shutil.rmtree(experiment / "runs")
    after = report_on(experiment, None)
    assert after.answer == before.answer
    assert after.tables == before.tables
    assert after.scores == before.scores
    assert {figure.name for figure in after.figures} == {
        f"{name}_unet-3F" for name in ("trade_off", "scores", "weights", "learning")
    }
    for number, report in enumerate((before, after)):
        for figure in report.figures:
            figure.save(tmp_path / f"figures-{number}")
    for path in (tmp_path / "figures-0").iterdir():
        assert path.read_bytes() == (tmp_path / "figures-1" / path.name).read_bytes()
    with pytest.raises(UserError, match="the run folders are gone"):
        report_on(experiment, Scans(data=cohort))
    settings, runs = after.settings
    assert settings.rows == [["epochs", "2"]]
    assert runs.rows[0][0] == "unet-3F/equal/fold-0_repeat-0"


def test_runs_that_have_a_folder_and_those_that_have_none_are_reported_together(experiment):
    before = report_on(experiment, None)
    shutil.rmtree(experiment / "runs" / "unet-3F" / "equal")
    after = report_on(experiment, None)
    assert after.tables == before.tables
    assert not after.failures


def test_the_page_explains_the_names_of_methods(records):
    (methods, *_) = assemble(records, title="T", lead="L").tables
    assert methods.rows == [
        ["equal", "F50-T50", "equal weights"],
        ["conservative-25", "Ours-C-25", Method.parse("conservative-25").description],
    ]
