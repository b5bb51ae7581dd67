"""Keep the encoder of the best probe, so that training never makes an encoder worse."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from smi.runs.checkpoint import save_encoder
from smi.runs.encoder import read_weights
from smi.runs.run import BEST, Run
from smi.training.job import Job
from smi.training.run_facts import encoder_header


class Selection:
    """Keep the encoder with the best probe so far as best.safetensors in the folder of the run.

    A resumed run repeats the probes since its checkpoint. Their results are the same, so that the
    file may already be ahead.
    """

    def __init__(self, job: Job, run: Run):
        self._job = job
        self._path = run.folder / BEST
        self._best = -1.0
        if self._path.is_file():
            self._best = float(read_weights(self._path)[1]["selected"]["score"])

    def offer(self, step: int, probe: Mapping[str, Any], encoder: nn.Module) -> None:
        """Write the encoder if its probe is better than all before."""
        if self._job.config.select != "best" or probe["knn"] <= self._best:
            return
        self._best = probe["knn"]
        selected = {"criterion": "knn", "score": self._best, "images": probe["images"]}
        header = {**encoder_header(self._job, step), "selected": selected}
        save_encoder(self._path, encoder.get_submodule("network").state_dict(), header)

    def result(self, encoder: nn.Module) -> tuple[Mapping[str, Tensor], dict[str, Any]]:
        """Return the weights and the header of the encoder to export: the best, or the last."""
        if self._job.config.select == "best" and self._path.is_file():
            return read_weights(self._path)
        weights = encoder.get_submodule("network").state_dict()
        return weights, encoder_header(self._job, self._job.steps)

    def sentence(self) -> str:
        """Say which encoder is kept."""
        if self._job.config.select != "best" or not self._path.is_file():
            return ""
        header = read_weights(self._path)[1]
        step, score = header["about"]["step"], header["selected"]["score"]
        which = "the start" if step == 0 else f"that of epoch {header['about']['epoch']:g}"
        return f"kept {which}, with the best kNN on held-out images: {score:.1%}"
