"""Read the accuracies of linear classifiers that runs hold, and select comparable ones."""

from collections.abc import Mapping, Sequence

from smi.data.sources import dataset_label
from smi.errors import UserError
from smi.evaluation.results import Result, read_all
from smi.runs.run import Run

PROTOCOLS = ("linear", "linear-cached")  # in order of preference


def top1(result: Result) -> float:
    """Return the top-1 accuracy of a result."""
    return _score(result, str(result.protocol["name"]))


def top5(result: Result) -> float | None:
    """Return the top-5 accuracy of a result; None with five classes or fewer."""
    name = f"{result.protocol['name']} top-5"
    return _score(result, name) if any(score.name == name for score in result.scores) else None


def _score(result: Result, name: str) -> float:
    return next(score.value for score in result.scores if score.name == name)


def results_of(
    run: Run, protocols: Sequence[str] = PROTOCOLS, data: str | None = None
) -> list[Result]:
    """Return a run's results, the preferred first: by protocol, epochs and training images.

    They are those of the encoder at the end of training. Of an unfinished run, they are those of
    the last encoder that was evaluated.
    data: a dataset's name; None is the dataset that the run was pretrained on.
    """
    dataset = data or dataset_label(str(run.config["data"]["source"]))
    results = [
        result
        for result in read_all(run.folder)
        if result.subject == "encoder"
        and result.protocol["name"] in protocols
        and result.protocol["data"] == dataset
    ]
    newest = max((result.encoder.get("step", 0) for result in results), default=0)
    if run.finished and (lines := run.metrics(per_step=False)):
        newest = lines[-1]["step"]  # do not mix older accuracies with newer features
    return sorted(
        (result for result in results if result.encoder.get("step", 0) == newest),
        key=lambda result: (
            protocols.index(result.protocol["name"]),
            -result.protocol.get("epochs", 0),
            -result.protocol["train"]["images"],
        ),
    )


def comparable(
    runs: Mapping[str, Run], protocols: Sequence[str] = PROTOCOLS, data: str | None = None
) -> dict[str, Result]:
    """Return one result for each run, all under the same protocol on the same dataset."""
    results = {name: results_of(run, protocols, data) for name, run in runs.items()}
    for name, candidates in results.items():
        if not candidates:
            raise _not_evaluated(runs[name], protocols, data)
    first, *others = results.values()
    for candidate in first:
        same = [
            next((result for result in candidates if result.stamp == candidate.stamp), None)
            for candidates in others
        ]
        if None not in same:
            pairs = zip(results, [candidate, *same], strict=True)
            return {name: result for name, result in pairs if result is not None}
    raise _not_comparable(runs, results, protocols)


def _not_evaluated(run: Run, protocols: Sequence[str], data: str | None) -> UserError:
    kinds = " or ".join(protocols)
    on = f" on {data}" if data else ""
    option = f" --data {data}" if data else ""
    return UserError(
        f"{run.folder} has no {kinds} results{on} yet: run "
        f"`smi evaluate {run.folder} --protocol {protocols[0]}{option}`" + _quicker(protocols)
    )


def _not_comparable(
    runs: Mapping[str, Run], results: Mapping[str, Sequence[Result]], protocols: Sequence[str]
) -> UserError:
    datasets = {str(r.protocol["data"]) for candidates in results.values() for r in candidates}
    if len(datasets) > 1:
        return UserError(
            f"these runs were evaluated on different datasets ({', '.join(sorted(datasets))}): "
            "name one with --data"
        )
    folders = " ".join(str(run.folder) for run in runs.values())
    return UserError(
        "these runs were evaluated under different protocols, so their numbers cannot be "
        f"compared: run `smi evaluate {folders} --protocol {protocols[0]}`" + _quicker(protocols)
    )


def _quicker(protocols: Sequence[str]) -> str:
    return " (or linear-cached, which takes seconds)" if "linear-cached" in protocols[1:] else ""
