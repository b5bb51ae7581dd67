"""Compute t-SNE and nearest neighbours of the weights that a run started from, and store them.

portrait = load_start_portrait(Run("runs/mine"), Sample("cifar10", images=1000), device)

The images and the queries are those of the run's own portrait, which also holds their pictures and
labels. The file is figures/portrait-start-<weights>-<settings>.json.
"""

import torch

from smi.figures.sample import Sample
from smi.reporting.portrait import Portrait, PortraitMaker, portrait_path, saved_or_made
from smi.runs.encoder import load
from smi.runs.run import Run


def load_start_portrait(run: Run, sample: Sample, device: torch.device) -> Portrait:
    """Return the portrait of a run's start that its folder holds, or compute and save it."""
    if not run.checkpoint.is_file():
        return Portrait({}, {"encoder": f"{run.folder} has no checkpoint yet"})
    if not run.start.is_file():
        reason = (
            f"{run.folder} has no {run.start.name}, the encoder before the first step. "
            "Training writes it before its first step."
        )
        return Portrait({}, {"encoder": reason})
    path = portrait_path(run, [run.start], sample, prefix="portrait-start")
    return saved_or_made(path, StartPortraitMaker(run, sample, device))


class StartPortraitMaker(PortraitMaker):
    """Compute the parts of a portrait that are shown before and after training."""

    def make(self) -> Portrait:
        """Compute t-SNE and neighbours."""
        encoder = self._attempt("encoder", lambda: load(self.run.folder).off_the_shelf())
        if encoder is not None:
            encoder.to(self.device)
            sample = self.sample.with_existing_split()
            h = self._attempt("images", lambda: self._add_images(encoder, sample))
            if h is not None:
                self._arrange(h)
        for name in ("pictures", "labels", "classes"):  # the portrait of the run holds them
            self.parts.pop(name, None)
        return Portrait(self.parts, self.missing)
