"""Keep the encoder of the best probe, so that training never makes an encoder worse."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from smi.runs.checkpoint import save_encoder
from smi.runs.encoder import read_weights
from smi.runs.names import probe_text
from smi.runs.run import BEST, Run
from smi.training.job import Job
from smi.training.run_facts import encoder_header

MIN_RANK_SHARE = 0.1  # of the first probe's rank, without labels


class Selection:
    """Keep the encoder with the best probe so far as best.safetensors in the folder of the run.

    A resumed run repeats the probes since its checkpoint. Their results are the same, so that the
    file may already be ahead.
    """

    def __init__(self, job: Job, run: Run):
        self._job = job
        self._run = run
        self._path = run.folder / BEST
        self._best = -1.0
        self._is_start = False  # the best so far; a later encoder must be better than the start
        if header := run.best_header():
            self._best = float(header["selected"]["score"])
            self._is_start = header["about"]["step"] == 0

    def offer(self, step: int, probe: Mapping[str, Any], encoder: nn.Module) -> None:
        """Write the encoder if no probe before was better, and the start was worse."""
        if self._job.config.select != "best" or self._has_collapsed(probe):
            return
        criterion = "knn" if "knn" in probe else "retrieval"
        score = probe[criterion]
        if score < self._best or (score == self._best and self._is_start):
            return
        self._best = score
        self._is_start = step == 0
        selected = {"criterion": criterion, "score": self._best, "images": probe["images"]}
        header = {**encoder_header(self._job, step), "selected": selected}
        save_encoder(self._path, encoder.get_submodule("network").state_dict(), header)

    def _has_collapsed(self, probe: Mapping[str, Any]) -> bool:
        """Return whether features without labels have lost most of the rank of the first probe.

        Such an encoder may still tell images apart, so that retrieval does not notice.
        """
        if "rank" not in probe:
            return False
        first = self._run.probes()[0]["probe"]
        return bool(probe["rank"] < MIN_RANK_SHARE * first["rank"])

    def result(self, encoder: nn.Module) -> tuple[Mapping[str, Tensor], dict[str, Any]]:
        """Return the weights and the header of the encoder to export: the best, or the last."""
        if self._job.config.select == "best" and self._path.is_file():
            return read_weights(self._path)
        weights = encoder.get_submodule("network").state_dict()
        return weights, encoder_header(self._job, self._job.steps)

    def sentence(self) -> str:
        """Say which encoder is kept."""
        header = self._run.best_header() if self._job.config.select == "best" else None
        if header is None:
            return ""
        about, selected = header["about"], header["selected"]
        which = "the start" if about["step"] == 0 else f"the encoder of epoch {about['epoch']:g}"
        score = probe_text({selected["criterion"]: selected["score"]})
        return f"kept {which}, the best on held-out images: {score}"
