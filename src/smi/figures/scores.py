"""Accuracies of linear classifiers from the results in runs' eval/: those that may be put beside each other."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from smi.data.sources import NAMES
from smi.errors import UserError
from smi.evaluation.results import Result, read_all
from smi.runs.run import Run

PROTOCOLS = ("linear", "linear-cached")  # the first that there is


def top1(result: Result) -> float:
    return _score(result, str(result.protocol["name"]))


def top5(result: Result) -> float | None:
    """None with five classes or fewer."""
    name = f"{result.protocol['name']} top-5"
    return _score(result, name) if any(score.name == name for score in result.scores) else None


def _score(result: Result, name: str) -> float:
    return next(score.value for score in result.scores if score.name == name)


def spelt(run: Run) -> str:
    """What it was pretrained on, as results spell it: a folder's name has a slash behind it."""
    source = str(run.config["data"]["source"])
    return source if source in NAMES else f"{Path(source).name}/"


def results_of(
    run: Run, protocols: Sequence[str] = PROTOCOLS, data: str | None = None
) -> list[Result]:
    """The preferred first: by protocol, then by epochs and training images.

    Of the encoder as training left it; of a run that is not finished, as it was last evaluated.
    data: a set's name; None: what the run was pretrained on.
    """
    found = [
        result
        for result in read_all(run.folder)
        if result.subject == "encoder"
        and result.protocol["name"] in protocols
        and result.protocol["data"] == (data or spelt(run))
    ]
    newest = max((result.encoder.get("step", 0) for result in found), default=0)
    if run.finished and (lines := run.metrics()):
        newest = lines[-1][
            "step"
        ]  # of a run that went on since, older accuracies are not put beside newer features
    found = [result for result in found if result.encoder.get("step", 0) == newest]
    return sorted(
        found,
        key=lambda r: (
            protocols.index(r.protocol["name"]),
            -r.protocol.get("epochs", 0),
            -r.protocol["train"]["images"],
        ),
    )


def comparable(
    runs: Mapping[str, Run], protocols: Sequence[str] = PROTOCOLS, data: str | None = None
) -> dict[str, Result]:
    """One result for each run, all under one protocol on one set of images; a sentence if there are none."""
    every = {name: results_of(run, protocols, data) for name, run in runs.items()}
    for name, results in every.items():
        if not results:
            folder, more = runs[name].folder, f" --data {data}" if data else ""
            kinds = " or ".join(protocols)
            raise UserError(
                f"{folder} has no {kinds} results{f' on {data}' if data else ''} yet: run "
                f"`smi evaluate {folder} --protocol {protocols[0]}{more}`" + _quicker(protocols)
            )
    first, *others = every.values()
    for candidate in first:
        rest = [
            next((result for result in results if result.stamp == candidate.stamp), None)
            for results in others
        ]
        if all(result is not None for result in rest):
            return dict(
                zip(
                    every,
                    [candidate, *(result for result in rest if result is not None)],
                    strict=True,
                )
            )
    folders = " ".join(str(run.folder) for run in runs.values())
    sets = {str(result.protocol["data"]) for results in every.values() for result in results}
    if len(sets) > 1:
        raise UserError(
            f"these runs were evaluated on different images ({', '.join(sorted(sets))}): name one set with --data"
        )
    raise UserError(
        f"these runs were evaluated under different protocols, so their numbers may not be put beside each other: run "
        f"`smi evaluate {folders} --protocol {protocols[0]}`" + _quicker(protocols)
    )


def _quicker(protocols: Sequence[str]) -> str:
    return " (or linear-cached, which takes seconds)" if "linear-cached" in protocols[1:] else ""
