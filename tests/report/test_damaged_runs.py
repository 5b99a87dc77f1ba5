"""Tables of a run that were damaged, cut, or written by somebody else."""

import json
import math
import random
import shutil

import pytest

from steelyard.cli import main
from steelyard.errors import UserError
from steelyard.report.data.results import read_results
from steelyard.report.data.runs import read_run
from steelyard.report.data.steps import read_steps
from steelyard.report.data.timings import load_timings
from steelyard.report.figures.curves import learning_figure
from steelyard.report.figures.figure import Panel, ReportFigure
from steelyard.report.tables.run_tables import configuration_tables

CELLS = [
    "inf",
    "nan",
    "",
    "1e308",
    "-1e308",
    "9" * 5000,
    "9" * 400,
    "x",
    "\x00",
    "-1",
    "A" * 200_000,
    "1e999",
    "$\\frac",
]
FILES = ("epochs.csv", "steps.csv", "metrics.csv")


@pytest.fixture
def run(run_folder, tmp_path):
    return shutil.copytree(run_folder / "conservative-25" / "fold-0_repeat-0", tmp_path / "run")


def rewrite(path, column, text):
    header, *rows = path.read_text().splitlines()
    names = header.split(",")
    cells = [row.split(",") for row in rows]
    for row in cells:
        row[names.index(column)] = text
    path.write_text("\n".join([header, *(",".join(row) for row in cells)]) + "\n")


def report(path, tmp_path):
    return main(["report", str(path), "--out", str(tmp_path / "page.html")])


@pytest.mark.parametrize(
    ("name", "column", "text", "fault"),
    [
        ("metrics.csv", "dsc", "inf", "line 2: dsc must be within 0 and 1; got 'inf'"),
        ("metrics.csv", "dsc", "1e308", "dsc must be a number of at most 3.4e\\+38"),
        ("metrics.csv", "hd95", "1e308", "hd95 must be a number of at most 3.4e\\+38"),
        ("metrics.csv", "auc", "-0.1", "auc must be within 0 and 1"),
        ("metrics.csv", "subject", "", "subject is empty"),
        ("metrics.csv", "subject", "9" * 5000, "subject must be of at most 255 printable characters"),
        ("epochs.csv", "validation_flair", "1e308", "line 2: validation_flair must be a number of at most"),
        ("epochs.csv", "validation_t1", "x", "validation_t1 must be a number; got 'x'"),
        ("steps.csv", "weight_flair", "inf", "line 2: weight_flair must be a number within 0 and 1"),
        ("steps.csv", "weight_t1", "1e308", "weight_t1 must be a number of at most"),
        ("steps.csv", "weight_t1", "", "weight_t1 must be a number within 0 and 1; got ''"),
    ],
)
def test_a_number_that_no_run_writes_is_named_with_its_line(run, tmp_path, capsys, name, column, text, fault):
    rewrite(run / name, column, text)
    with pytest.raises(UserError, match=rf"run: its tables are damaged \({name}.*{fault}") as caught:
        read_run(run)
    assert len(str(caught.value)) < 400
    assert report(run, tmp_path) == 2
    assert capsys.readouterr().err.startswith(f"steelyard: {run}")


def test_losses_of_a_network_that_diverged_are_gaps(run, tmp_path):
    rewrite(run / "epochs.csv", "validation_flair", "inf")
    learning_figure([read_run(run)]).save(tmp_path)
    for column, text in (("validation_flair", "nan"), ("validation_t1", "-inf")):
        rewrite(run / "epochs.csv", column, text)
    learning_figure([read_run(run)]).save(tmp_path)


def test_metrics_that_are_missing_or_infinite_are_no_fault(run, tmp_path):
    header, *rows = (run / "metrics.csv").read_text().splitlines()
    place = header.split(",").index("lesion_f1")
    cut = [",".join(cell for at, cell in enumerate(line.split(",")) if at != place) for line in (header, *rows)]
    (run / "metrics.csv").write_text("\n".join(cut) + "\n")
    record = read_run(run)
    assert math.isnan(record.scores("flair", "lesion_f1")[0])
    rewrite(run / "metrics.csv", "hd95", "inf")
    rewrite(run / "metrics.csv", "auc", "")
    assert report(run, tmp_path) == 0


def test_mutated_tables_are_read_or_refused_in_one_line(run_folder, tmp_path):
    chance, faults = random.Random(1), []
    whole = run_folder / "conservative-25" / "fold-0_repeat-0"
    run = shutil.copytree(whole, tmp_path / "run")
    for _ in range(60):
        name = chance.choice(FILES)
        mutated = mutate((whole / name).read_text(), chance)
        (run / name).write_bytes(mutated)
        faults += fault_of(run)
        shutil.copy(whole / name, run / name)
    assert len(faults) > 20
    assert all("\n" not in fault and len(fault) < 500 for fault in faults)


def fault_of(run):
    try:
        read_run(run)
    except UserError as error:
        return [str(error)]
    return []


def mutate(text, chance):
    rows = [line.split(",") for line in text.splitlines()]
    row = chance.choice(rows)
    kind = chance.randrange(4)
    if kind == 0:
        row[chance.randrange(len(row))] = chance.choice(CELLS)
    elif kind == 1:
        row.pop(chance.randrange(len(row)))
    elif kind == 2:
        rows = rows[: chance.randrange(len(rows))]
    content = "\n".join(",".join(row) for row in rows).encode()
    if kind == 3:
        place = chance.randrange(len(content))
        content = content[:place] + bytes([chance.randrange(256)]) + content[place + 1 :]
    return content


def test_records_that_are_nested_too_deeply_are_no_traceback(run):
    deep = '{"a":' * 900 + "1" + "}" * 900
    (run / "environment.json").write_text(f'{{"packages": {deep}}}')
    record = read_run(run)
    assert [table.title for table in configuration_tables([record])] == ["Settings", "Runs"]
    settings = json.loads((run / "config.json").read_text()) | {"options": "@"}
    (run / "config.json").write_text(json.dumps(settings).replace('"@"', deep))
    with pytest.raises(UserError, match=r"config\.json: cannot be read as JSON"):
        read_run(run)


def test_votes_for_endless_domains_are_refused(tmp_path):
    (tmp_path / "steps.csv").write_text("vote\n" + "".join(f"d{number}\n" for number in range(1100)))
    with pytest.raises(UserError, match="more than 1000 domains"):
        read_steps(tmp_path / "steps.csv")


@pytest.mark.parametrize("text", ["1e308", "1e-320", "inf", "9" * 5000, ""])
def test_times_that_nothing_takes_are_refused(tmp_path, text):
    columns = "model,availability,method,fold,repeat,steps,validation_seconds,evaluation_seconds,seconds_per_step"
    (tmp_path / "timings.csv").write_text(f"{columns}\nunet,all,equal,0,0,4,0.25,3.0,{text}\n")
    with pytest.raises(UserError, match=r"timings\.csv, line 2: seconds_per_step must be"):
        load_timings(tmp_path / "timings.csv")


def test_a_fold_of_hundreds_of_digits_is_refused(tmp_path):
    keys = "model,availability,method,fold,repeat,subject,domain,dsc\n"
    (tmp_path / "results.csv").write_text(f"{keys}unet,all,equal,{'9' * 200},0,s,flair,0.5\n")
    with pytest.raises(
        UserError, match=r"results\.csv, line 2: fold must be a whole number of at least 0, of at most 9"
    ):
        read_results(tmp_path / "results.csv")


@pytest.mark.parametrize("name", ["$\\frac$", "a_b^c", "$x", "$x$", "100 %", "\\alpha{", "北京"])
def test_names_are_drawn_as_they_are(tmp_path, name):
    def draw(axes):
        axes.plot([0, 1], label=name)
        axes.set_xlabel(name)
        axes.annotate(name, (0.5, 0.5))
        axes.set_xticks([0], [name])
        axes.legend()

    figure = ReportFigure(name="figure", title=name, caption="", panels=(Panel(title=name, draw=draw),))
    assert figure.inline_panels()[0].count(f">{name}</text>") == 5
    figure.save(tmp_path)
