"""Keep the encoder of the best probe, so that training never makes an encoder worse.

The mean of trained weights and those of the start is often better than both (arXiv:2109.01903).
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from smi.nn import create_encoder
from smi.runs.checkpoint import save_encoder
from smi.runs.encoder import read_weights
from smi.runs.names import kept_name, probe_text
from smi.runs.run import BEST, Run
from smi.training.job import Job
from smi.training.run_facts import encoder_header

MIN_RANK_SHARE = 0.1  # of the first probe's rank, without labels
HALF = 0.5  # share of trained weights in the encoder halfway


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

    def halfway(self, encoder: nn.Module) -> nn.Module | None:
        """Return an encoder halfway between the start and this one; None for runs without one."""
        if self._job.config.select != "best" or not self._run.start.is_file():
            return None
        start, _ = read_weights(self._run.start)
        weights = dict(encoder.get_submodule("network").state_dict())
        for name, tensor in weights.items():
            if tensor.is_floating_point():
                weights[name] = torch.lerp(start[name].to(tensor), tensor, HALF)
        config = self._job.config
        between = create_encoder(**config.encoder, image_size=config.views.size)
        between.network.load_state_dict(weights)
        device = self._job.device
        between.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        return between

    def offer(
        self, step: int, probe: Mapping[str, Any], encoder: nn.Module, *, share: float = 1.0
    ) -> None:
        """Write the encoder if no probe before was better, and the start was worse.

        share: of trained weights; the others are those of the start.
        """
        if self._job.config.select != "best" or self._has_collapsed(probe):
            return
        score = score_of(probe)
        if score < self._best or (score == self._best and self._is_start):
            return
        self._best = score
        self._is_start = step == 0
        criterion = "knn" if "knn" in probe else "retrieval"
        selected = {"criterion": criterion, "score": self._best, "images": probe["images"]}
        header = {**encoder_header(self._job, step), "selected": selected}
        if share < 1:
            header["about"]["share"] = share
        save_encoder(self._path, encoder.get_submodule("network").state_dict(), header)

    def _has_collapsed(self, probe: Mapping[str, Any]) -> bool:
        """Return whether features without labels have lost most of the rank of the first probe.

        Such an encoder may still tell images apart, so that retrieval does not notice.
        """
        if "knn" in probe:
            return False
        untrained = self._job.config.init.source is None
        probes = (line for line in self._run.iterate_lines() if "probe" in line)
        first = next((line for line in probes if line.get("step", 0) or not untrained), None)
        if first is None:
            return False
        now, then = _rank(probe), _rank(first["probe"])
        return now is not None and then is not None and now < MIN_RANK_SHARE * then

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
        selected = header["selected"]
        score = probe_text({selected["criterion"]: selected["score"]})
        return f"kept {kept_name(header)}, the best on held-out images: {score}"


def score_of(probe: Mapping[str, Any]) -> float:
    """Return the score of a probe that decides: kNN or, without labels, retrieval."""
    return float(probe["knn"] if "knn" in probe else probe["retrieval"])


def _rank(probe: Mapping[str, Any]) -> float | None:
    """Return RankMe of a probe; probes of earlier versions may have none."""
    rank: float | None = probe.get("label_free", {}).get("rank_me")
    return rank
