import csv
import json

import pytest

import heads
from steelyard.cli import main
from steelyard.errors import UserError
from steelyard.imaging.datasets.bids import read_bids
from steelyard.imaging.datasets.domains import assign_domains
from steelyard.imaging.datasets.prepared import read_prepared
from steelyard.imaging.runs.slice_settings import SliceChoice
from steelyard.imaging.train.data import load_labelled

SCANNERS = ("A", "A", "A", "B", "B", "B", "n/a")


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    """Seven labelled heads of two scanners and of one that nobody wrote down."""
    root = tmp_path_factory.mktemp("sites")
    for number in range(7):
        heads.write_subject(root, f"{number}", seed=number)
    table = [f"sub-{number}\t{scanner}\n" for number, scanner in enumerate(SCANNERS)]
    (root / "participants.tsv").write_text("participant_id\tscanner\n" + "".join(table))
    return root


def test_plain_contrasts_need_no_table(cohort):
    belongs = assign_domains(read_bids(cohort), ("flair", "t1"))
    assert belongs["sub-0"] == {"flair": "flair", "t1": "t1"}
    assert belongs["sub-5"] == {"flair": "flair"}
    with pytest.raises(UserError, match=r"participants.tsv: there is no such file; domains with @ need its column"):
        assign_domains(read_bids(cohort), ("flair@A",))
    assert assign_domains(read_bids(cohort), ("flair@A", "t1"), table_needed=False)["sub-0"] == {"t1": "t1"}


def test_a_plain_contrast_beside_siblings_is_what_they_leave(sites):
    dataset = read_bids(sites)
    alone = assign_domains(dataset, ("flair@A", "t1"))
    assert (alone["sub-0"], alone["sub-3"]) == ({"flair": "flair@A", "t1": "t1"}, {"t1": "t1"})
    beside = assign_domains(dataset, ("flair@A", "flair"))
    assert [beside[f"sub-{number}"].get("flair") for number in range(7)] == ["flair@A"] * 3 + ["flair"] * 4


def test_only_members_have_slices_and_a_digest(sites):
    labelled = load_labelled(read_prepared(sites), SliceChoice(), domains=("flair@A", "t1@B"))
    assert set(labelled.domains["flair@A"].owners) == {"sub-0", "sub-1", "sub-2"}
    assert set(labelled.domains["t1@B"].owners) == {"sub-3", "sub-4", "sub-5"}
    assert set(labelled.subjects) == {f"sub-{number}" for number in range(6)}
    with pytest.raises(UserError, match="flair@C: no subject has both a flair scan and a lesion mask"):
        load_labelled(read_prepared(sites), SliceChoice(), domains=("flair@C",))


def test_derivatives_find_the_table_of_their_source_and_site_will_do(sites, tmp_path):
    raw, derived = tmp_path / "raw data", tmp_path / "derived"
    raw.mkdir()
    heads.write_subject(derived, "0", contrasts=("flair",))
    (derived / "dataset_description.json").write_text(json.dumps({"DatasetLinks": {"raw": "../raw%20data"}}))
    (raw / "participants.tsv").write_text("participant_id\tsite\nsub-0\tNorth\n")
    assert assign_domains(read_bids(derived), ("flair@North",))["sub-0"] == {"flair": "flair@North"}
    (raw / "participants.tsv").write_text("participant_id\tage\nsub-0\t70\n")
    with pytest.raises(UserError, match="needs the columns participant_id and scanner or site"):
        assign_domains(read_bids(derived), ("flair@North",))


def test_three_domains_are_trained_and_judged(sites, cohort, tmp_path):
    run = tmp_path / "run"
    domains = ["--set", 'domains=["flair@A","flair","t1"]', "batch_size=6", "epochs=1"]
    split = ("--folds", "7", "--validate", "1")
    settings = ("--experiment", "smoke", "--method", "Ours-C-25", *split, *domains)
    assert main(["train", str(sites), str(run), *settings]) == 0
    with (run / "steps.csv").open() as stream:
        step = next(csv.DictReader(stream))
    assert {"loss_flair@A", "loss_flair", "loss_t1"} <= set(step)
    assert main(["evaluate", str(run), str(sites), "--subjects", "all"]) == 0
    with (run / "metrics-all.csv").open() as stream:
        judged = {(row["subject"], row["domain"]) for row in csv.DictReader(stream)}
    flair = {(f"sub-{number}", "flair@A" if number < 3 else "flair") for number in range(7)}
    assert judged == flair | {(f"sub-{number}", "t1") for number in range(7)}


def test_bad_names_leave_their_subjects_out_with_a_warning(tmp_path, caplog):
    heads.write_subject(tmp_path, "1", seed=1)
    (tmp_path / "sub-2").symlink_to("sub-2")
    heads.write_subject(tmp_path, "3\udcff", seed=3)
    assert [subject.key for subject in read_prepared(tmp_path).subjects] == ["sub-1"]
    assert [message.rsplit(": ", 1)[1] for message in caplog.messages] == [
        "is a link that leads to no folder; the subject is left out.",
        "the name is not UTF-8; rename it; the subject is left out.",
    ]
    (tmp_path / "sub-4" / "anat").mkdir(parents=True)
    with pytest.raises(UserError, match="sub-4: there is neither a FLAIR nor a T1w scan"):
        read_prepared(tmp_path)
