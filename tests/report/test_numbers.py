import csv
import json
import pickle
import shutil
from dataclasses import replace

import pytest

from steelyard.errors import UserError
from steelyard.imaging.datasets.prepared import read_prepared
from steelyard.report.data.predictions import predict_on
from steelyard.report.data.runs import by_setting, mean_and_spread, read_run, read_runs
from steelyard.report.data.steps import gather_steps
from steelyard.report.html.viewer import pack_subject
from steelyard.report.tables.run_tables import answer, configuration_tables, means_table, rivals, subjects_table


@pytest.fixture(scope="module")
def records(run_folder):
    return read_runs([run_folder])


def test_runs_are_found_within_folders_once_and_in_the_papers_order(run_folder):
    found = read_runs([run_folder / "conservative-25", run_folder, run_folder / "equal" / "fold-0_repeat-0"])
    assert [run.method for run in found] == ["equal", "conservative-25", "conservative-25"]
    assert list(by_setting(found)) == ["unet-3F"]


def test_the_table_holds_the_means_of_the_runs_own_files(records):
    table = means_table(records)
    assert [row[:2] for row in table.rows] == [["equal", "1"], ["conservative-25", "2"]]
    assert table.headings[2:4] == ["DSC-F", "DSC-T"]
    means = []
    for record in records[1:]:
        with (record.path / "metrics.csv").open() as stream:
            held = [float(row["dsc"]) for row in csv.DictReader(stream) if row["domain"] == "t1"]
        means.append(sum(held) / len(held))
    mean, spread = mean_and_spread(means)
    assert table.rows[1][3] == f"{mean:.3f} ± {spread:.3f}"
    assert "±" not in table.rows[0][3]
    assert table.rows[0][-1] == "0.50"


def test_each_subject_has_a_row_for_each_method(records):
    table = subjects_table(records)
    assert [row[:2] for row in table.rows] == [
        [records[0].subjects[0], "equal"],
        [records[0].subjects[0], "conservative-25"],
    ]
    assert table.rows[0][2] == f"{records[0].scores('flair')[0]:.3f}"


def of_three_domains(record):
    """The same run, as if FLAIR had come from two scanners and the subject from the second."""
    domains = ("flair@a", "t1", "flair@b")
    metrics = [row | {"domain": row["domain"].replace("flair", "flair@b")} for row in record.metrics]
    return replace(record, domains=domains, method="equal", metrics=metrics)


def test_columns_of_three_domains_have_their_names(records):
    table = means_table([of_three_domains(records[0])])
    assert table.headings[2:5] == ["DSC-flair@a", "DSC-t1", "DSC-flair@b"]
    assert [heading for heading in table.headings if heading.startswith("weight")] == [
        f"weight of {name} at the end" for name in ("flair@a", "T1", "flair@b")
    ]
    assert len(set(table.headings)) == len(table.headings) == len(table.rows[0])
    assert table.rows[0][2] == "–"
    assert table.rows[0][4] == means_table(records).rows[0][2]


def test_scans_of_a_scanner_are_predicted_on_and_shown(records, cohort):
    subject = next(one for one in read_prepared(cohort).subjects if one.key in records[0].subjects)
    plain, named = (predict_on(subject, [record]) for record in (records[0], of_three_domains(records[0])))
    assert list(named.masks["equal"]) == ["t1", "flair@b"]
    assert (named.masks["equal"]["flair@b"] == plain.masks["equal"]["flair"]).all()
    packed, expected = pack_subject(named), pack_subject(plain)
    assert packed["masks"]["equal"] == expected["masks"]["equal"]
    assert packed["scores"]["equal"]["flair@b"] == expected["scores"]["equal"]["FLAIR"]


def test_a_metric_that_one_subject_lacks_leaves_the_others_in(records):
    lacking = [{**row, "subject": "sub-none", "auc": "nan"} for row in records[0].metrics]
    both = replace(records[0], metrics=[*records[0].metrics, *lacking])
    assert means_table([both]).rows[0][4] == means_table(records[:1]).rows[0][4]
    rows = {row[0]: row for row in subjects_table([both]).rows}
    assert rows["sub-none"][4] == "–"


def test_a_thousand_steps_take_few_bytes():
    rows = ({"weight_flair": "0.25", "weight_t1": "0.75", "vote": "t1", "loss_t1": f"{step}.5"} for step in range(1000))
    steps = gather_steps(rows)
    assert steps.count == 1000
    assert steps.weights["t1"][-1] == 0.75
    assert len(pickle.dumps(steps)) < 12_000  # two weights and a vote in ten bytes a step


def test_code_of_others_is_run_only_if_the_user_named_it(records, tmp_path):
    path = shutil.copytree(records[0].path, tmp_path / "run")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"model": "torch.nn:Identity"}))
    run = read_run(path)
    with pytest.raises(UserError, match="code of somebody's"):
        run.network(("torch.nn:Linear",))
    with pytest.raises(UserError, match="no parameters to train"):
        run.network(("torch.nn:Identity",))


def test_the_answer_says_what_was_gained_and_how_little_that_shows(records):
    said = answer(records[:2])
    gain = records[1].scores("flair")[0] - records[0].scores("flair")[0]
    assert f"conservative-25 against equal, mean Dice: FLAIR {gain:+.3f}" in said[0]
    assert "not which method is better" in said[1]
    assert "looks better than it is" in answer(records)[1]


def test_a_method_of_one_domain_is_no_rival_of_those_of_both(records):
    single = replace(records[1], method="flair-only")
    assert rivals([records[0], single, records[1]], "equal") == ["conservative-25"]
    assert rivals([records[0], single], "equal") == ["flair-only"]


def test_the_configuration_shows_what_differs_and_what_it_ran_on(records):
    settings, versions, runs = configuration_tables(records)
    held = {row[0]: row[1] for row in settings.rows}
    assert held["method"] == "equal; conservative-25"
    assert held["seed"] == "0; 1"
    assert held["slices.frame.pixel_mm"] == "4.0"
    assert "packages.torch" in {row[0] for row in versions.rows}
    assert runs.rows[2][0] == "unet-3F/conservative-25/fold-0_repeat-1"


def test_damaged_and_missing_runs_are_named(records, tmp_path):
    shutil.copytree(records[0].path, tmp_path / "run")
    (tmp_path / "run" / "metrics.csv").write_text("subject,domain,part,dsc\na,flair,test,high\n")
    with pytest.raises(UserError, match="its tables are damaged"):
        read_run(tmp_path / "run")
    shutil.copy(records[0].path / "metrics.csv", tmp_path / "run")
    (tmp_path / "run" / "steps.csv").write_text("step,weight_flair,vote\n0,much,flair\n")
    with pytest.raises(UserError, match=r"its tables are damaged .*much"):
        read_run(tmp_path / "run")
    with pytest.raises(UserError, match="this is not a run folder"):
        read_run(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="there is no run folder in it"):
        read_runs([tmp_path / "empty"])
