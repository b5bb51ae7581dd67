"""Show what training changed in weights that existed before: scores, and the encoder that is kept.

blocks = [*kept_texts(runs), *gain_blocks(runs, starts, has_labels=True)]
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smi.errors import UserError
from smi.files import damaged
from smi.pages import Block, Missing, TableBlock, Text
from smi.reporting.gains import Results, ScoredRun, gain_tables, read_scores
from smi.reporting.run_blocks import join_words, missing_block
from smi.reporting.runs import ReportRun
from smi.runs.names import kept_name, probe_text
from smi.runs.run import Run

RETRIEVAL_NOTE = "Retrieval: how often the view of an image finds its other view among all images."

# ------------------------------------------------------------------------------ the kept encoder


def kept_texts(runs: Sequence[ReportRun]) -> Iterator[Block]:
    """Say which encoder each run of a row keeps."""
    for run in runs:
        name = f"{run.name}. " if len(runs) > 1 else ""
        try:
            yield Text(name + kept_sentence(run.run))
        except UserError as error:  # a damaged file
            yield missing_block(error)
    if any("retrieval" in line["probe"] for run in runs for line in run.run.probes()):
        yield Text(RETRIEVAL_NOTE, note=True)


def kept_sentence(run: Run) -> str:
    """Say which encoder is kept, with its score and that of the start."""
    kept = "Kept" if run.finished else "Kept so far"
    if not run.best.is_file():
        return f"{kept}: {_last_encoder(run)}"
    header = run.best_header()
    if header is None:
        raise damaged(run.best, "its header does not describe the best encoder")
    selected = header["selected"]
    criterion = selected["criterion"]
    score = _describe_score({criterion: selected["score"], "images": selected.get("images")})
    if header["about"]["step"] == 0:
        return f"{kept}: the start itself, {score}; {best_later(run, criterion)}."
    return f"{kept}: {kept_name(header)}, {score}{_had(run, criterion)}."


def _last_encoder(run: Run) -> str:
    """Describe the last encoder, with the probes that compare it with the start."""
    lines = run.metrics(per_step=False)
    epoch = run.epoch(lines[-1]["step"]) if lines else None
    text = "the encoder of the last step" + ("" if epoch is None else f" (epoch {epoch:.3g})")
    probes = run.probes()
    if len(probes) < 2 or probes[0]["step"] > 0:
        return f"{text}. No probe compared it with the start."
    last = probes[-1]["probe"]
    return f"{text}, {_describe_score(last)}{_had(run, 'knn' if 'knn' in last else 'retrieval')}."


def _describe_score(probe: Mapping[str, Any]) -> str:
    """Return the score of a probe, and the number of its images if that is known."""
    number = f"{probe['images']:,} " if probe.get("images") else ""
    return f"{probe_text(probe)} on {number}held-out images"


def _had(run: Run, criterion: str) -> str:
    """Return the score of the start, to end a sentence."""
    scores = [line["probe"].get(criterion) for line in run.probes() if line["step"] == 0]
    return f"; the start had {scores[0]:.1%}" if scores and scores[0] is not None else ""


def best_later(run: Run, criterion: str) -> str:
    """Describe the best score after the start, which was not better."""
    later = [line["probe"] for line in run.probes() if line["step"] > 0]
    scores = [max(p[criterion], p.get("halfway", 0)) for p in later if criterion in p]
    return f"the best later probe had {max(scores):.1%}" if scores else "no later probe was made"


# ------------------------------------------------------------------------------ scores


def gain_blocks(
    runs: Sequence[ReportRun], starts: Mapping[str, Results], *, has_labels: bool
) -> Iterator[Block]:
    """Yield tables of scores before and after, or the command that measures them.

    starts: results of starts by the digest of their weights. has_labels: whether the images of the
    runs have labels to measure an accuracy with.
    """
    scored: dict[str, ScoredRun] = {}
    for run in runs:
        try:
            scored[run.name] = read_scores(run.run, starts)
        except UserError as error:
            yield missing_block(error)
    tables = gain_tables([run for run in scored.values() if run.after])
    yield from (TableBlock(table) for table in tables)
    silent = [run for run in runs if run.name in scored and not scored[run.name].after]
    if silent:
        yield _missing_scores(silent, has_labels)


def _missing_scores(runs: Sequence[ReportRun], has_labels: bool) -> Missing:
    """Name the command that evaluates both encoders."""
    folders = [str(run.run.folder) for run in runs]
    if not has_labels:
        command = shlex.join(["smi", "evaluate", *folders, "--floors"]) + " --data LABELLED_IMAGES"
        return Missing(
            "These images have no labels, so there is no accuracy to compare. Other images that "
            "have labels can be used:",
            command,
        )
    names = join_words(run.name for run in runs)
    return Missing(
        f"Scores of {names} before and after are not measured yet under one protocol:",
        shlex.join(["smi", "evaluate", *folders, "--floors"]),
    )


# ------------------------------------------------------------------------------ t-SNE


def rotated_onto(points: Sequence[Any], target: Sequence[Any]) -> list[list[float]]:
    """Rotate or mirror points [n, 3] so that they are as near to `target` as they can be.

    t-SNE has no preferred direction, so that this changes nothing but the view.
    """
    before: NDArray[np.float64] = np.asarray(points, dtype=np.float64)
    after: NDArray[np.float64] = np.asarray(target, dtype=np.float64)
    before = before - before.mean(axis=0)
    after = after - after.mean(axis=0)
    left, _, right = np.linalg.svd(before.T @ after)  # orthogonal Procrustes
    rotated: list[list[float]] = (before @ left @ right).round(3).tolist()
    return rotated
