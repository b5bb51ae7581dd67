"""Judge the claim about the loss's cost: counted by formula, and timed on this machine."""

import statistics
from collections.abc import Sequence
from dataclasses import replace

from smi.paper.cost import count_costs, giga
from smi.paper.estimates import (
    BARLOW_TWINS_NAME,
    SMI_NAME,
    format_ratio,
    judge,
    log_ratio,
    plain_estimate,
    row_of,
)
from smi.paper.numbers import BARLOW_TWINS, SMI
from smi.paper.verdicts import (
    HOLDS,
    Claim,
    DatasetComparisons,
    Finding,
    LossTimes,
    not_measured,
)
from smi.runs.names import display_name


def cost_claim(datasets: Sequence[DatasetComparisons], loss_times: LossTimes | None) -> Claim:
    """Judge whether SMI's loss costs a fraction of Barlow Twins'."""
    timed = _timed(loss_times) if loss_times else not_measured("The losses were not timed")
    return Claim(
        "cost",
        "The loss costs a fraction of Barlow Twins'",
        "12.88 against 137.43 × 10⁹ operations of the forward pass (Table 2).",
        "Counted by formula; and timed, forward and backward, in one process where the losses take "
        "turns: the ratio of each round's times. Barlow Twins is published with a matrix of K × K "
        "coordinates; this package computes the same number from two of N × N samples.",
        (_counted(), *timed),
        tuple(note for dataset in datasets if (note := _share_of_step(dataset))),
    )


def _counted() -> Finding:
    rows = count_costs()
    by_name = {row.loss: row for row in rows}
    smi, barlow_twins = by_name[SMI_NAME], by_name[BARLOW_TWINS_NAME]
    share = smi.paper_macs / barlow_twins.paper_macs
    return Finding(
        "counted, at the paper's setting",
        HOLDS,
        f"{giga(smi.paper_macs)} against {giga(barlow_twins.paper_macs)} × 10⁹ "
        f"multiply-accumulates: {share:.1%} (256 samples on each of 8 devices, 8192 coordinates). "
        "The count is exact, so it has no interval.",
        ("loss", "GMACs, as the paper counts", "GMACs here, per device"),
        tuple((row.loss, giga(row.paper_macs), giga(row.device_macs)) for row in rows),
        {"share": share},
    )


def _timed(loss_times: LossTimes) -> tuple[Finding, ...]:
    """Judge SMI against Barlow Twins as published, and as this package computes it."""
    findings = [_against(name, loss_times) for name in loss_times.times if name != SMI_NAME]
    rows = tuple(
        (name, _format_ms(statistics.median(times)), ", ".join(map(_format_ms, times)))
        for name, times in loss_times.times.items()
    )
    headers = ("loss", "ms, median", "ms, all rounds")
    return (*findings[:-1], replace(findings[-1], headers=headers, rows=rows)) if findings else ()


def _against(name: str, loss_times: LossTimes) -> Finding:
    smi, other = loss_times.times[SMI_NAME], loss_times.times[name]
    ratio = log_ratio(dict(enumerate(smi)), dict(enumerate(other)))
    sentence = (
        f"{SMI_NAME} {_format_ms(statistics.median(smi))} ms, "
        f"{name} {_format_ms(statistics.median(other))} ms: {format_ratio(ratio)} of the time, "
        f"{loss_times.batch} × {loss_times.dim} embeddings, {len(other)} rounds, "
        f"{loss_times.machine}."
    )
    numbers = {"log ratio": plain_estimate(ratio), "ms": dict(loss_times.times)}
    verdict = judge(ratio, larger=False)
    return Finding(f"timed, against {name}", verdict, sentence, numbers=numbers)


def _format_ms(milliseconds: float) -> str:
    return f"{milliseconds:.3g}" if milliseconds < 1000 else f"{milliseconds:,.0f}"


def _share_of_step(dataset: DatasetComparisons) -> str:
    """Return a sentence about the loss's share of a training step; empty if not measured."""
    shares = []
    for method in (SMI, BARLOW_TWINS):
        row = row_of(dataset.pair, method) if dataset.pair else None
        if row is not None and row.loss_share is not None:
            name = display_name(row.method)
            shares.append(f"{row.loss_share:.1%} of a step of {name} ({row.loss_ms:.2g} ms)")
    return f"In the runs on {dataset.data} the loss took {' and '.join(shares)}." if shares else ""
