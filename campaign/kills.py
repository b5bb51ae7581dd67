"""Kill commands at random moments and at every call that changes a file, then repeat them.

python campaign/kills.py            all cases; --quick tries a few calls of some
python campaign/kills.py --only DINO download

A killed command must leave no process, no held lock and no half-written file. Repeated, it must
leave the same files as one that was never killed: weights and metrics equal to the bit, no
temporary file.
"""

import random
import signal
from pathlib import Path

from trial import (
    Case,
    Shim,
    Trials,
    finish,
    prepare_process,
    scratch_folder,
    shared,
    start_with_shim,
)

EVERY_CALL = ("pretrain, SMI", "shard", "export over", "download", "report", "embed", "evaluate")
NUM_SPREAD = 12  # calls of other cases, at even distances with a random start
NUM_RANDOM = 6  # moments of each case
NUM_COMPARE = 4


def kill_at_calls(trials: Trials, record, numbers) -> None:
    """Kill the command at some of its calls, and judge what is left after a repetition."""
    name = f"{trials.case.name}: at a call"
    for number in numbers:
        trials.renew()
        victim = number % trials.case.ranks
        ended = trials.run(kill_at=number, victim=victim)
        call = trials.shim.what.replace(str(trials.folder), "")
        lost = trials.judge(ended)
        if ended.code not in (-signal.SIGKILL, 0):
            lost = f"it ended with {ended.code} instead: {ended.said[-200:]}; {lost}"
        record.add(name, ok=not lost, detail=f"call {number} ({call}): {lost}")


def kill_at_moments(trials: Trials, record, draws: random.Random, count: int) -> None:
    """Kill the command at random moments."""
    name = f"{trials.case.name}: at a random moment"
    for _ in range(count):
        trials.renew()
        moment = draws.uniform(0, 1.05 * trials.seconds)
        ended = trials.run(kill_after=moment, victim=draws.randrange(trials.case.ranks))
        lost = trials.judge(ended)
        record.add(name, ok=not lost, detail=f"after {moment:.3f} s: {lost}")


def try_case(case: Case, work: Path, shim: Shim, record, draws, *, quick: bool) -> None:
    """Make all trials of a case."""
    trials = Trials(case, work / case.name.replace(" ", "-").replace("/", "-"), shim)
    calls = range(1, trials.num_calls + 1)
    if case.name == "compare":
        numbers = []
    elif quick:
        numbers = draws.sample(calls, min(3, len(calls)))
    elif case.ranks == 1 and case.name.startswith(EVERY_CALL):
        numbers = list(calls)
    else:
        step = max(1, len(calls) // NUM_SPREAD)
        numbers = list(calls[draws.randrange(step) :: step])
    kill_at_calls(trials, record, numbers)
    count = NUM_COMPARE if case.name == "compare" else NUM_RANDOM
    kill_at_moments(trials, record, draws, 1 if quick else count)


def main() -> None:
    """Make the trials, print what was lost, and write results/campaign-kills.json."""
    arguments = start_with_shim("kills", __doc__)
    from cases import all_cases, compare_case, selected
    from record import Record

    prepare_process()
    cases = [*all_cases(), compare_case()]
    if arguments.quick and not arguments.only:
        cases = selected(cases, ["SMI", "embed to .npz", "export over", "download"])
    record = Record("kills", seed=arguments.seed)
    shim = Shim()
    for case in shared(selected(cases, arguments.only), arguments):
        draws = random.Random(f"{arguments.seed} {case.name}")
        with scratch_folder(arguments.work) as folder:
            try_case(case, Path(folder, "work"), shim, record, draws, quick=arguments.quick)
        counts = [row for name, row in record.cases.items() if name.startswith(f"{case.name}:")]
        tried = sum(row["tried"] for row in counts)
        survived = sum(row["survived"] for row in counts)
        print(f"{case.name}: {survived} of {tried} survived", flush=True)
    finish(record, arguments)


if __name__ == "__main__":
    main()
