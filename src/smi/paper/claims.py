"""Judge the paper's claims about SMI by runs and comparisons.

for claim in judge_claims([DatasetComparisons("cifar10", pair=comparison, sweep=sweep)]):
    print(claim.title, [finding.verdict for finding in claim.findings])

Each measure follows from the paper's words and was chosen before anything was measured, with one
exception. The minimum width of an interval of a difference of accuracies was added later: on few
test images, the differences of all seeds can be equal, and the interval would have no width.
A claim holds if the 95 % interval of the difference, paired by seed, lies on its side.
It does not hold if the interval lies on the other side. Otherwise there is no verdict.
"""

from collections.abc import Sequence

from smi.paper.accuracy_claims import accuracy_claim, lambda_claim, two_processes_claim
from smi.paper.cost_claim import cost_claim
from smi.paper.training_claims import training_claims
from smi.paper.verdicts import Claim, DatasetComparisons, LossTimes


def judge_claims(
    datasets: Sequence[DatasetComparisons], loss_times: LossTimes | None = None
) -> list[Claim]:
    """Judge every claim on every dataset; claims without measurements get no verdict."""
    return [
        *training_claims(datasets),
        lambda_claim(datasets),
        accuracy_claim(datasets),
        cost_claim(datasets, loss_times),
        two_processes_claim(datasets),
    ]
