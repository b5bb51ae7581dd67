"""Evaluate the weights that all runs of a comparison started from, off the shelf.

start = evaluate_start(Run("runs/three/runs/SMI/seed-0"), results)
"""

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace

from smi.comparison.comparison import OffTheShelf
from smi.device import Runtime
from smi.errors import UserError
from smi.evaluation.evaluate import evaluate
from smi.evaluation.results import OFF_THE_SHELF, Result, read_all, write
from smi.runs.encoder import load
from smi.runs.names import criteria_at_start
from smi.runs.run import Run


def evaluate_start(
    run: Run,
    results: Sequence[Result],
    *,
    images: int | None = None,
    runtime: Runtime = Runtime(),
) -> OffTheShelf | None:
    """Evaluate the start of a run under the protocols of the run's own results.

    images: the number of labelled training images, as `evaluate` takes it.
    Results are stored in the run's eval/, as `smi evaluate --floors` stores them, and stored ones
    are read. None for a run from scratch.
    """
    if run.init_source is None or not run.start.is_file():
        return None
    config = run.config
    start = OffTheShelf(
        run.init_source,
        config["encoder"]["name"],
        config["init"]["digest"],
        criteria=criteria_at_start(run),
    )
    try:
        stored = _stored(run)
        missing = [result.protocol["name"] for result in results if result.stamp not in stored]
        stored |= _measure(run, missing, images, runtime) if missing else {}
    except UserError as error:  # for example, features that are NaN
        return replace(start, failed=f"it could not be evaluated: {error}")
    scored = [stored[result.stamp] for result in results if result.stamp in stored]
    return replace(start, results=tuple(scored))


def _stored(run: Run) -> dict[str, Result]:
    """Return the stored results of a run's start, by the stamp of their protocol."""
    digest = load(run.start).digest()
    return {
        result.stamp: result
        for result in read_all(run.folder)
        if result.subject == OFF_THE_SHELF and result.encoder["digest"] == digest
    }


def _measure(
    run: Run, protocols: Sequence[str], images: int | None, runtime: Runtime
) -> dict[str, Result]:
    """Evaluate the start of a run, and store the results; return them by stamp."""
    runtime = replace(runtime, root=runtime.root or run.facts.root)
    with tempfile.TemporaryDirectory() as folder:  # results are written beside a file of weights
        weights = shutil.copy(run.start, folder)
        ((_, measured),) = evaluate(
            [weights],
            data=run.config["data"]["source"],
            protocols=protocols,
            images=images,
            runtime=runtime,
        ).rows
    results = [_as_start(result) for result in measured]
    for result in results:
        write(run.folder, result)
    return {result.stamp: result for result in results}


def _as_start(result: Result) -> Result:
    """Return the result of a file of weights as one of a run's start."""
    about = {name: result.encoder[name] for name in ("digest", "network")}
    return replace(result, subject=OFF_THE_SHELF, encoder=about)
