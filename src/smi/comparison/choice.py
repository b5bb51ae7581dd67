"""Choose the value of a swept setting without labels: the one whose views are retrieved best.

choose_values(comparison)     # sentences, one for each method
"""

from itertools import groupby

from smi.comparison.comparison import Comparison, Row

CRITERION = "retrieval"
TRUST = (
    "how far to trust it: docs/results.md#choosing-without-labels compares it with accuracy over "
    "many runs; differences of less than a point mean nothing"
)


def choose_values(comparison: Comparison) -> list[str]:
    """Return which value each method should have, and how far to trust the choice."""
    sentences = []
    for method, rows in groupby(comparison.rows, key=lambda row: row.method):
        sentence = _choose(comparison, method, list(rows))
        sentences += [sentence] if sentence else []
    return [*sentences, TRUST] if sentences else ["nothing to choose: no two values were probed"]


def _choose(comparison: Comparison, method: str, rows: list[Row]) -> str:
    estimates = [(comparison.criterion(row, CRITERION), row) for row in rows]
    ranked = sorted(
        ((estimate.mean, row) for estimate, row in estimates if estimate is not None),
        key=lambda pair: -pair[0],
    )
    if len(ranked) < 2:
        return ""
    (best, chosen), (second, next_row) = ranked[:2]
    return (
        f"chosen without labels, by retrieval of views: {method} with {comparison.swept} "
        f"{chosen.value} ({best:.1%}; then {next_row.value} with {second:.1%})"
    )
