"""Answer whether encoders are any good: their scores beside those of untrained ones and pixels.

blocks = list(quality_blocks(runs, unlabelled=set()))

Stored results and the probes of training are read; nothing is computed.
"""

import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from smi.errors import UserError
from smi.evaluation.results import (
    OFF_THE_SHELF,
    RAW_PIXELS,
    TRAINED,
    UNTRAINED,
    Result,
    read_all,
    row_name,
)
from smi.health.history import Probe
from smi.pages import Block, Missing, TableBlock, Verdict
from smi.pages.blocks import Level
from smi.reporting.before_after import best_later
from smi.reporting.gains import (
    Results,
    ScoredRun,
    gain,
    present_results,
    read_scores,
    score_names,
    start_results,
    top_1,
)
from smi.reporting.run_blocks import join_words, missing_block
from smi.reporting.runs import ReportRun, first_runs
from smi.runs.names import kept_name
from smi.runs.run import Run
from smi.tables import NONE, Table
from smi.terminal import counted

FLOORS = {  # in the order of the table, with their names in a sentence
    RAW_PIXELS: "raw pixels",
    UNTRAINED: "the untrained encoder",
    OFF_THE_SHELF: "the weights it started from",
}
CLEAR_NOTE = (
    "better or worse: the 95 % interval of the difference is above or below 0. For few labels it "
    "covers other draws of the labels, but not other test images; for other scores it covers "
    "other test images. Other seeds of the training may differ. The tab Evaluation describes the "
    "scores"
)
PROBE_TITLE = "On held-out images, measured during training"
CRITERIA = {"knn": "kNN", "retrieval": "retrieval of views"}

Subjects = dict[str, Results]  # results by stamp: of the encoder (TRAINED) and of its floors
Count = tuple[int, int, int]  # scores that are better and worse than those of a floor, and all


def quality_blocks(
    runs: Sequence[ReportRun],
    *,
    unlabelled: Collection[str],
    seeds: Sequence[ReportRun] = (),
) -> Iterator[Block]:
    """Yield a verdict on each run, a table of scores, and the command for missing ones.

    unlabelled: names of runs whose images have no labels. seeds: runs that are not shown, and may
    store the floors of those that are.
    """
    subjects: dict[str, Subjects] = {}
    for run in runs:
        try:
            subjects[run.name] = _subjects(run.run, [other.run for other in (*runs, *seeds)])
        except UserError as error:
            yield missing_block(error)
    for name, of_run in subjects.items():
        run = next(run for run in runs if run.name == name)
        yield _verdict(name, run.run, of_run)
    yield from _score_tables({name: of_run for name, of_run in subjects.items() if of_run})
    yield from _probe_table([run for run in runs if not subjects.get(run.name)])
    readable = [run for run in runs if run.name in subjects]
    yield from _missing_scores(readable, subjects, unlabelled)


def compared_quality_blocks(
    runs: Sequence[ReportRun], *, unlabelled: Collection[str]
) -> Iterator[Block]:
    """Yield the same for one run of each row of a comparison.

    If none of its runs has floors, only the command that measures them for one run is shown.
    """
    shown = first_runs(runs)
    try:
        stored = {result.subject for run in runs for result in read_all(run.run.folder)}
        if stored.isdisjoint((RAW_PIXELS, UNTRAINED)):
            first = shown[0]
            subjects = {first.name: _subjects(first.run, [first.run])}
            yield from _missing_scores([first], subjects, unlabelled)
        else:
            yield from quality_blocks(shown, unlabelled=unlabelled, seeds=runs)
    except UserError as error:  # a damaged file
        yield missing_block(error)


# ------------------------------------------------------------------------------ stored results


def _subjects(run: Run, runs: Sequence[Run]) -> Subjects:
    """Read the results of a run's present encoder and of its floors; empty if not evaluated.

    runs: all runs of the page, because one of them stores the floors that they share.
    """
    trained = present_results(run)
    if not trained:
        return {}
    network = next(iter(trained.values())).encoder.get("network")
    subjects = {TRAINED: trained}
    for floor in (RAW_PIXELS, UNTRAINED):
        for other in (run, *runs):
            for result in read_all(other.folder):
                alike = result.encoder.get("network", network) == network
                if result.subject == floor and result.stamp in trained and alike:
                    subjects.setdefault(floor, {}).setdefault(result.stamp, top_1(result))
    if run.init_source is not None:
        before = read_scores(run, start_results(runs)).before
        subjects |= {OFF_THE_SHELF: before} if before else {}
    return subjects


def _score_tables(subjects: Mapping[str, Subjects]) -> Iterator[Block]:
    """Yield a table for each dataset: a row for each score, a column for each encoder."""
    datasets = {
        r.protocol["data"] for of_run in subjects.values() for r in of_run[TRAINED].values()
    }
    for data in sorted(datasets):
        columns: dict[tuple[str, str], list[Result]] = {}  # by the name and digest of an encoder
        for subject in (*FLOORS, TRAINED):
            for name, of_run in subjects.items():
                for result in of_run.get(subject, {}).values():
                    if result.protocol["data"] == data:
                        own = name if subject == TRAINED else subject
                        columns.setdefault((own, result.encoder["digest"]), []).append(result)
        yield TableBlock(_score_table(columns, data))


def _score_table(columns: Mapping[tuple[str, str], Sequence[Result]], data: str) -> Table:
    """Make the table of one dataset; floors of one kind get their full names if they differ."""
    kinds = [name for name, _ in columns]
    headers = [
        row_name(name, results[0].subject, results[0].encoder) if kinds.count(name) > 1 else name
        for (name, _), results in columns.items()
    ]
    scores = [
        {(r.stamp, score.name): f"{score.value:.1%}" for r in results for score in r.scores}
        for results in columns.values()
    ]
    keys = list(dict.fromkeys(key for column in scores for key in column))
    lines = [
        [name, *(column.get(key, NONE) for column in scores)]
        for name, key in zip(score_names(keys), keys, strict=True)
    ]
    title = f"Accuracy beside baselines, on held-out images of {data.removesuffix('/')}"
    return Table.of(["", *headers], lines, title=title, notes=[CLEAR_NOTE])


# ------------------------------------------------------------------------------ verdicts


def _verdict(name: str, run: Run, subjects: Subjects) -> Verdict:
    """Say in a sentence whether an encoder beats its floors; without them, whether it improved."""
    counts = {
        floor: _count(subjects[floor], subjects[TRAINED]) for floor in FLOORS if floor in subjects
    }
    if not counts:
        return _probe_verdict(name, run)
    words = join_words(_compared(floor, *count) for floor, count in counts.items())
    answer = _answer(list(counts.values()))
    level: Level = "ok" if answer == "Yes" else "warning"
    compared = [
        result
        for stamp, result in subjects[TRAINED].items()
        if any(stamp in subjects[floor] for floor in counts)
    ]
    header, epoch = run.best_header(), compared[0].encoder.get("epoch")
    which = f"encoder of epoch {epoch:g}" if epoch is not None else ""
    which = which if header is None else f"kept: {kept_name(header)}"
    facts = ", ".join(filter(None, (_test_images(compared), which)))
    return Verdict(level, name, f"{answer}: it is {words}.", facts, [])


def _answer(counts: Sequence[Count]) -> str:
    """Answer whether an encoder is any good in a word, given its counts beside each floor."""
    if all(2 * better > total and not worse for better, worse, total in counts):
        return "Yes"
    if any(better for better, _, _ in counts):
        return "Partly"
    return "No" if any(worse for _, worse, _ in counts) else "Hardly"


def _test_images(results: Sequence[Result]) -> str:
    """Count the held-out images of results, with the names of the datasets if there are several."""
    sizes = [(r.protocol["data"], r.protocol.get("test", {}).get("images")) for r in results]
    counts = list(dict.fromkeys(sizes))
    texts = [
        counted(images, "held-out image") + (f" of {data.removesuffix('/')}" if counts[1:] else "")
        for data, images in counts
        if images
    ]
    return f"on {join_words(texts)}" if texts else ""


def _count(floor: Results, trained: Results) -> Count:
    """Count the scores in which an encoder is clearly better and worse than a floor, and all.

    A difference whose interval is unknown is neither.
    """
    run = ScoredRun(0, floor, {stamp: trained[stamp] for stamp in floor})
    columns = [(stamp, score.name) for stamp in floor for score in trained[stamp].scores]
    differences = [gain([run], column).difference for column in columns]
    better = sum(d.low is not None and d.low > 0 for d in differences)
    worse = sum(d.high is not None and d.high < 0 for d in differences)
    return better, worse, len(columns)


def _compared(floor: str, better: int, worse: int, total: int) -> str:
    """Compare with a floor in words."""

    def share(count: int) -> str:
        return f"{count} of {total} scores" if total > 1 else "the only score"

    if better and worse:
        return f"better than {FLOORS[floor]} in {share(better)}, worse in {worse}"
    if better or worse:
        word = "better" if better else "worse"
        return f"{word} than {FLOORS[floor]} in {share(better or worse)}"
    return f"not clearly better than {FLOORS[floor]}"


def _probe_verdict(name: str, run: Run) -> Verdict:
    """Compare the probe of the present encoder with that before the first step."""
    probes = _probes(run)
    if probes is None:
        sentence = "Not measured: no probe compared this encoder with the one before training."
        facts = "the tab Images shows its nearest neighbours"
        return Verdict("unknown", name, sentence, facts, [])
    start, now = probes
    before = FLOORS[UNTRAINED if run.init_source is None else OFF_THE_SHELF]
    images = counted(now.images, "held-out image") if now.images else "held-out images"
    facts = f"{CRITERIA[now.criterion]} on {images}: {start.score:.1%} before training"
    if now.step == 0:
        sentence = f"No: the run keeps {before}, and no later encoder."
        return Verdict("warning", name, sentence, f"{facts}; {best_later(run, now.criterion)}", [])
    difference = now.score - start.score
    level: Level = "ok" if difference > start.noise else "warning"
    answer, word = "Hardly", "not clearly better"
    if abs(difference) > start.noise:
        answer, word = ("Yes", "better") if difference > 0 else ("No", "worse")
    header = run.best_header()
    when = f"at epoch {now.epoch:.4g}" if now.epoch else "now"
    when = when if header is None else f"for {kept_name(header)}, which is kept for this score"
    facts += f", {now.score:.1%} {when}"
    return Verdict(level, name, f"{answer}: it is {word} than {before}.", facts, [])


def _probes(run: Run) -> tuple[Probe, Probe] | None:
    """Return the probes before the first step and of the present encoder; None if one is missing.

    The present encoder is the best one if the run keeps it, or else the last one.
    """
    lines = run.probes()
    parsed = [Probe.parse(x["step"], x.get("epoch"), x["probe"]) for x in (*lines[:1], *lines[-1:])]
    probes = [probe for probe in parsed if probe is not None]
    if len(probes) < 2 or not probes[0].step == 0 < probes[1].step:
        return None
    start, now = probes
    if run.best.is_file():
        header = run.best_header()
        if header is None:  # damaged
            return None
        about, selected = header["about"], header["selected"]
        now = replace(
            start,
            step=about["step"],
            epoch=about["epoch"],
            criterion=selected["criterion"],
            score=selected["score"],
            images=selected.get("images"),
        )
    return (start, now) if start.criterion == now.criterion else None


def _probe_table(runs: Sequence[ReportRun]) -> Iterator[Block]:
    """Yield a table of the probes of runs that are not evaluated, before training and now."""
    rows = []
    for run in runs:
        probes = _probes(run.run)
        if probes is not None:
            scores = [f"{probe.score:.1%}" for probe in probes]
            rows.append([f"{run.name}, {CRITERIA[probes[0].criterion]}", *scores])
    if rows:
        yield TableBlock(Table.of(["", "before training", "now"], rows, title=PROBE_TITLE))


# ------------------------------------------------------------------------------ missing scores


def _missing_scores(
    runs: Sequence[ReportRun], subjects: Mapping[str, Subjects], unlabelled: Collection[str]
) -> Iterator[Block]:
    """Name the scores that are not measured yet, and the command that measures them."""
    groups: dict[tuple[str, ...], list[ReportRun]] = {}  # runs by what is missing
    for run in runs:
        starts = [OFF_THE_SHELF] if run.run.init_source is not None else []
        of_run = subjects[run.name]
        if of_run or not starts:  # otherwise "Before and after" says so
            expected = (RAW_PIXELS, UNTRAINED, *starts)
            missing = [FLOORS[floor] for floor in expected if floor not in of_run]
            accuracy = [] if of_run else ["labels" if run.name in unlabelled else "its accuracy"]
            groups.setdefault((*accuracy, *missing), []).append(run)
    for words, group in groups.items():
        command = shlex.join(["smi", "evaluate", *(str(run.run.folder) for run in group)])
        names = f" for {join_words(run.name for run in group)}" if len(groups) > 1 else ""
        if words[:1] == ("labels",):
            yield Missing(
                f"There is no accuracy{names}, because the images have no labels. Other images "
                "that have labels can be used:",
                f"{command} --floors --data LABELLED_IMAGES",
            )
        elif words:
            yield Missing(
                f"Not measured{names}: {join_words(words)}. To add:", f"{command} --floors"
            )
