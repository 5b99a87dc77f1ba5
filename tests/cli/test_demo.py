import pytest

from steelyard.cli import main


@pytest.mark.slow
def test_the_demo_goes_from_nothing_to_a_page_and_again_without_work(tmp_path, capsys):
    command = ["demo", str(tmp_path / "demo"), "--subjects", "4", "--experiment", "smoke"]
    assert main(command) == 0
    first = (tmp_path / "demo" / "index.html").read_text()
    shown = capsys.readouterr()
    assert "conservative-25" in shown.out
    assert str(tmp_path / "demo" / "index.html") in shown.err
    assert (tmp_path / "demo" / "predicted" / "volumes.csv").exists()
    assert main(command) == 0
    assert (tmp_path / "demo" / "index.html").read_text() == first
