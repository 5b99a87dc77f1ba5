import pytest
import torch

import hidden_folders  # noqa: F401


@pytest.fixture(autouse=True)
def _one_thread_and_seed():
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture
def compiler():
    """Nothing is compiled yet: after several networks of one class torch gives up, and runs further ones eagerly."""
    torch.compiler.reset()


@pytest.fixture(scope="session")
def cohort(tmp_path_factory):
    """Five small heads, with masks."""
    import heads  # here, because the core's tests run without what heads are written with

    root = tmp_path_factory.mktemp("cohort")
    for number in range(5):
        heads.write_subject(root, f"{number}", seed=number)
    return root


@pytest.fixture(scope="session")
def run_folder(cohort, tmp_path_factory):
    """Three judged runs on those heads: fixed weights, and learned ones with two seeds, as an experiment keeps them."""
    from steelyard.cli import main

    root = tmp_path_factory.mktemp("runs") / "unet-3F"
    for method, repeat in (("equal", 0), ("conservative-25", 0), ("conservative-25", 1)):
        run = root / method / f"fold-0_repeat-{repeat}"
        settings = ("--experiment", "smoke", "--method", method, "--seed", str(repeat))
        assert main(["train", str(cohort), str(run), *settings]) == 0
        assert main(["evaluate", str(run), str(cohort)]) == 0
    return root
