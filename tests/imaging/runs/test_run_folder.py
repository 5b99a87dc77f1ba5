import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

import processes
from steelyard.errors import UserError
from steelyard.experiments.configs import paper, smoke
from steelyard.imaging.runs.config import TrainingConfig
from steelyard.imaging.runs.run_folder import RunFolder
from steelyard.imaging.runs.split import split_subjects
from steelyard.imaging.train.audit_record import describe_audit, parse_audit
from steelyard.imaging.train.launch import TrainingJob, train
from steelyard.imaging.train.run_writer import describe_accelerator

PLATEAU = {"schedule": "plateau", "optimizer": "sgd", "learning_rate": 3.0, "patience": 1, "stop_after": 3, "epochs": 9}


@pytest.fixture
def job(labelled, tmp_path):
    split = split_subjects(labelled.subjects, folds=3)
    config = replace(smoke(), method="Ours-C-25", epochs=4)
    return TrainingJob(config=config, split=split, slices=labelled, out=tmp_path / "run")


def contents(folder):
    left_out = {"environment.json"}
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name not in left_out}


def test_the_folder_tells_everything(job):
    list(train(job))
    run = RunFolder(job.out)
    assert run.config == job.config
    assert run.split == job.split
    assert run.digests == job.slices.digests
    environment = json.loads((job.out / "environment.json").read_text())
    assert environment["packages"]["torch"] == torch.__version__
    header, *rows = (job.out / "steps.csv").read_text().splitlines()
    assert header == (
        "epoch,step,loss_flair,weight_flair,hypothetical_flair,loss_t1,weight_t1,hypothetical_t1,vote,outcome"
    )
    assert len(rows) == 4 * (len(rows) // 4) > 0
    assert rows[0].split(",")[-2] in ("flair", "t1")
    assert len((job.out / "epochs.csv").read_text().splitlines()) == 5
    assert {"best.safetensors", "last.safetensors", "finished.json"} <= set(contents(job.out))


def test_a_run_with_a_probe_has_an_audit_with_the_names_of_its_domains(job, tmp_path):
    list(train(job))
    content = json.loads((job.out / "audit.json").read_text(), parse_constant=pytest.fail)  # NaN is no JSON
    assert [domain["name"] for domain in content["domains"]] == ["flair", "t1"]
    assert content["domains"][0]["votes"] >= 1
    assert describe_audit(parse_audit(content)) == content
    plain = replace(job, config=replace(job.config, method="equal"), out=tmp_path / "plain")
    list(train(plain))
    assert not (plain.out / "audit.json").exists()


def test_an_audit_that_a_kill_left_behind_is_written_anew(job, tmp_path):
    whole = replace(job, out=tmp_path / "whole")
    list(train(whole))
    next(train(job))
    (job.out / "audit.json").write_text("{")
    list(train(job))
    assert (job.out / "audit.json").read_bytes() == (whole.out / "audit.json").read_bytes()


def accelerators(folder):
    return json.loads((folder / "environment.json").read_text())["accelerators"]


def test_the_folder_tells_what_it_was_trained_on(job, monkeypatch):
    epochs = train(job)
    next(epochs)
    epochs.close()
    next(train(job))
    assert accelerators(job.out) == [{"kind": "cpu", "devices": 1}]
    card = {"kind": "cuda", "devices": 1, "name": "a card"}
    monkeypatch.setattr("steelyard.imaging.train.launch.describe_accelerator", lambda device: card)
    list(train(job))
    assert accelerators(job.out) == [{"kind": "cpu", "devices": 1}, card]
    monkeypatch.undo()
    list(train(job))  # it is finished: nothing is trained any more
    assert accelerators(job.out)[-1] == card


def test_a_card_is_told_by_its_name(monkeypatch):
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: f"card {device.index}")
    told = describe_accelerator(torch.device("cuda", 1), devices=2)
    assert told == {"kind": "cuda", "devices": 2, "name": "card 1"}


@pytest.mark.parametrize("after", [1, 2, 3])
def test_stopped_between_epochs_it_goes_on_to_the_same_bytes(job, tmp_path, after):
    whole = replace(job, out=tmp_path / "whole")
    list(train(whole))
    epochs = train(job)
    for _ in range(after):
        next(epochs)
    epochs.close()
    for name in ("epochs.csv", "steps.csv"):
        with (job.out / name).open("a") as stream:
            stream.write(f"{after},0,half a li")
    (job.out / "split.json").unlink()
    assert [record.epoch for record in train(job)] == list(range(after, 4))
    assert contents(job.out) == contents(whole.out)
    assert list(train(job)) == []


@pytest.mark.parametrize("setting", [PLATEAU, {"method": "Simple-G"}])
def test_other_schedules_and_methods_go_on_alike(job, tmp_path, setting):
    config = replace(job.config, **({"epochs": 3} | setting))
    whole = replace(job, config=config, out=tmp_path / "whole")
    part = replace(job, config=config)
    records = list(train(whole))
    for _ in range(len(records)):
        next(train(part), None)
    list(train(part))
    assert contents(part.out) == contents(whole.out)
    if "patience" in setting:
        assert len({record.learning_rate for record in records}) > 1


def test_another_run_in_the_same_folder_is_refused_by_the_setting(job, labelled):
    list(train(job))
    other = replace(job, config=replace(job.config, seed=1))
    with pytest.raises(UserError, match=r"config.json: the run there has seed 0, not 1; give another folder"):
        list(train(other))
    elsewhere = replace(labelled, digests=dict.fromkeys(labelled.digests, "0"))
    with pytest.raises(UserError, match=r"split.json: the run there has another digests"):
        list(train(replace(job, slices=elsewhere)))


def test_a_folder_with_the_papers_name_of_the_method_is_the_same_run(job):
    epochs = train(job)
    next(epochs)
    epochs.close()
    path = job.out / "config.json"
    path.write_text(path.read_text().replace('"conservative-25"', '"Ours-C-25"'))
    assert [record.epoch for record in train(job)] == [1, 2, 3]


def test_somebody_elses_folder_is_left_alone(job):
    job.out.mkdir()
    (job.out / "thesis.tex").write_text("years")
    with pytest.raises(UserError, match="is not empty and holds no run"):
        list(train(job))
    assert [path.name for path in job.out.iterdir()] == ["thesis.tex"]


def test_configs_survive_json():
    for config in (paper(), smoke(), replace(smoke(), augmentation=None, options={"a": [1]})):
        assert TrainingConfig.from_dict(json.loads(json.dumps(config.as_dict()))) == config


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("colour", 1, "no setting 'colour'"),
        ("width", 10**9, "width must be a whole number"),
        ("width", "wide", "width must be a whole number"),
        ("method", "Ours-C", "must be of the form"),
        ("schedule", "never", "schedule must be one of"),
        ("slices", {"frame": {"depth": 3}}, "Frame has no setting 'depth'"),
        ("augmentation", [1], "Augmentation must be an object"),
        ("seed", -1, "seed must be"),
        ("width", True, "width must be a whole number"),
        ("method", 5, "method must be a str"),
        ("method", "Ours-C-9999999999999999999999999", "must be of the form"),
        ("slices", 5, "slices must be a SliceChoice"),
        ("slices", {"frame": {"shape": [64]}}, "shape must be two whole numbers"),
        ("domains", ["flair", 3], "domains must be names"),
        ("domains", ["flair", "flair"], "domains must be distinct"),
        ("options", 3, "options must be a dict"),
    ],
)
def test_a_config_file_with_nonsense_is_refused_by_name(job, name, value, message):
    list(train(job))
    path = job.out / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))
    with pytest.raises(UserError, match=message):
        _ = RunFolder(job.out).config


def test_a_run_without_weights_says_so(job, tmp_path):
    epochs = train(job)
    next(epochs)
    epochs.close()
    (job.out / "last.safetensors").unlink()
    with pytest.raises(UserError, match=r"last.safetensors: there are no weights; train the run first"):
        RunFolder(job.out).network()
    with pytest.raises(UserError, match=r"^[^:]*config.json: there is no such file; this is not a run folder"):
        RunFolder(tmp_path / "nothing").network()


def test_weights_of_another_architecture_are_refused_by_name(job):
    list(train(job))
    path = job.out / "config.json"
    whole = json.loads(path.read_text())
    path.write_text(json.dumps(whole | {"width": 8}))
    with pytest.raises(UserError, match="it holds 59071 numbers, and unet of width 8 has 233547"):
        RunFolder(job.out).network()
    for size in (10**5, 99_999):
        path.write_text(json.dumps(whole | {"width": size}))
        with pytest.raises(UserError, match="of another architecture"):
            RunFolder(job.out).network()


def test_a_weights_file_is_data(job):
    list(train(job))
    path = job.out / "last.safetensors"
    torch.save({"a": torch.zeros(1)}, path)
    with pytest.raises(UserError, match="cannot be read as safetensors"):
        RunFolder(job.out).network()


def test_what_a_killed_run_left_half_written_is_no_obstacle_and_is_swept(job):
    job.out.mkdir()
    mine = job.out / ".notes.draft-1.part"
    for path in (processes.unfinished(job.out / "config.json"), mine):
        path.write_text("{")
    next(train(job))
    assert list(job.out.glob(".*.part")) == [mine]


def test_weights_that_are_good_are_there_from_the_first_step_on(job):
    config = replace(job.config, learning_rate=1e30, optimizer="sgd", schedule="plateau")
    with pytest.raises(UserError, match="is nan"):
        list(train(replace(job, config=config)))
    held = load_file(job.out / "last.safetensors")
    assert all(tensor.isfinite().all() for tensor in held.values())


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"model": "torch.nn:Conv2d", "options": {"in_channels": 1, "out_channels": 2, "kernel_size": 1}}, "one logit"),
        ({"model": "torch.nn:Linear", "options": {"in_features": 3, "out_features": 1}}, "cannot take planes of 64×64"),
        ({"model": "torch.nn:Identity"}, "has no parameters to train"),
    ],
)
def test_a_network_that_does_not_fit_is_refused_before_it_trains(job, setting, message):
    with pytest.raises(UserError, match=message):
        list(train(replace(job, config=replace(job.config, **setting))))
    assert not job.out.exists()


@pytest.mark.parametrize("name", ["epochs.csv", "steps.csv"])
def test_a_run_that_was_sent_does_not_write_through_its_links(job, tmp_path, name):
    epochs = train(job)
    next(epochs)
    epochs.close()
    for outside in (tmp_path / "nothing", tmp_path / "precious"):
        (job.out / name).unlink()
        (job.out / name).symlink_to(outside)
        with pytest.raises(UserError, match=rf"{name}: is a link; remove it to go on\.$"):
            list(train(job))
        (tmp_path / "precious").write_text("years")
    assert not (tmp_path / "nothing").exists()
    assert (tmp_path / "precious").read_text() == "years"


def test_a_table_under_two_names_is_changed_under_one(job, tmp_path):
    epochs = train(job)
    next(epochs)
    other = tmp_path / "snapshot.csv"
    other.hardlink_to(job.out / "epochs.csv")
    before = other.read_bytes()
    list(epochs)
    assert other.read_bytes() == before
    assert (job.out / "epochs.csv").read_bytes().startswith(before)


@pytest.mark.parametrize("held", [[1, 2], {"epoch": 3}])
def test_a_checkpoint_of_something_else_is_refused(job, held):
    next(train(job))
    torch.save(held, job.out / "checkpoint.pt")
    with pytest.raises(UserError, match=r"checkpoint.pt: is the checkpoint of something else"):
        list(train(job))
    (job.out / "checkpoint.pt").unlink()
    (job.out / "epochs.csv").write_bytes(b"epoch\n\xff\xfe\n")
    with pytest.raises(UserError, match=r"epochs.csv: is damaged"):
        list(train(job))


class Bomb:
    def __reduce__(self):
        return (exec, ("raise SystemExit('a file ran code')",))


def test_a_checkpoint_that_would_run_code_is_refused(job):
    epochs = train(job)
    next(epochs)
    epochs.close()
    torch.save({"network": Bomb()}, job.out / "checkpoint.pt")
    with pytest.raises(UserError, match=r"checkpoint.pt: is damaged or no checkpoint"):
        list(train(job))


def test_a_file_cannot_have_code_imported(job):
    list(train(job))
    path = job.out / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model": "antigravity:fly"}))
    with pytest.raises(UserError, match=r"config.json: the network is 'antigravity:fly', which is code.*say --model"):
        RunFolder(job.out).network()
    with pytest.raises(UserError, match="which is code"):
        RunFolder(job.out).network(model="unet")


def test_the_trained_network_comes_back_as_it_was(job):
    list(train(job))
    network = RunFolder(job.out).network()
    assert not network.training
    again = RunFolder(job.out).network()
    image = torch.randn(2, 1, 32, 32)
    with torch.no_grad():
        assert torch.equal(network(image), again(image))
