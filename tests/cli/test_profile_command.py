import json

from steelyard.cli import main


def test_an_epoch_is_told_part_by_part(cohort, tmp_path, capsys):
    out = tmp_path / "parts.json"
    command = ["profile", str(cohort), "--experiment", "smoke", "--method", "conservative-25", "--json", str(out)]
    assert main(command) == 0
    told = capsys.readouterr().out
    held = json.loads(out.read_text())
    for part in held["seconds"]:
        assert part in told
    assert (held["method"], held["steps"]) == ("conservative-25", 2)
    assert held["seconds"]["vote"] > 0
    assert abs(sum(held["seconds"].values()) - held["total"]) < 0.02 * held["total"]
    assert main(command) == 2
    assert "parts.json: exists already" in capsys.readouterr().err
    for given, said in ((["--set", "nonsense"], "--set takes NAME=VALUE"), (["--folds", "99"], "99")):
        assert main(["profile", str(cohort), "--experiment", "smoke", *given]) == 2
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["parts.json"]
