"""`steelyard export`: a trained network as ONNX."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from steelyard.cli.command import Command, default, say


@dataclass(frozen=True)
class Export(Command):
    """Write a trained network as ONNX, checked against torch.

    It takes stripped, normalised slices and gives probabilities.
    """

    run_folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(name="run", metavar="RUN")]
    """The run folder of a trained network."""
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT.onnx")]
    """The file to write, such as model.onnx; an existing file is not overwritten."""
    model: Annotated[str | None, default("none; steelyard's own networks need no path")] = None
    """The import path of a network that is not steelyard's own: its code runs, so trust it."""

    def run(self) -> int:
        """Load, convert, compare, write."""
        from steelyard.files.destinations import check_file
        from steelyard.imaging.networks.export import export_onnx
        from steelyard.imaging.runs.run_folder import RunFolder

        check_file(self.out)
        run = RunFolder(self.run_folder)
        network = run.network(model=self.model)
        difference = export_onnx(network, self.out, frame=run.config.slices.frame)
        say(f"{self.out} agrees with torch: no probability differs by more than {difference:.1g}")
        return 0
