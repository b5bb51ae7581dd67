"""The checks: each looks at the history and tells what it sees: trouble, health, or None if it cannot say.

Values are judged by the median of five lines, so that one odd batch is no finding, and not before a run has had time to get there.
"""

from dataclasses import dataclass
from typing import Literal

from smi.health.history import WINDOW, History

Level = Literal["ok", "warning", "stop"]


@dataclass(frozen=True)
class Finding:
    """Something seen in a run: in one sentence, with the numbers that show it and what to do about it."""

    kind: str
    level: Level
    sentence: str
    evidence: str
    advice: str = ""


def check(h: History) -> list[Finding]:
    return [finding for look in CHECKS if (finding := look(h))]


def check_finite(h: History) -> Finding | None:
    kind = "non_finite"
    if h.broken is None:
        return (
            Finding(
                kind,
                "ok",
                "Every loss is a finite number.",
                f"{h.num_lines} lines up to step {h.step}",
            )
            if h.num_lines
            else None
        )
    step, value = h.broken
    evidence = [f"loss {value} at step {step}"]
    if h.last_finite:
        evidence.append(f"last finite loss {_text(h.last_finite[1])} at step {h.last_finite[0]}")
    if h.lr is not None:
        evidence.append(f"learning rate {_text(h.lr)}")
    grew = False
    if h.largest_gradient and h.gradient.count:
        at, norm = h.largest_gradient
        grew = norm > 10 * h.gradient.start > 0
        evidence.append(
            f"largest gradient norm before it {_text(norm)} at step {at} (at the start {_text(h.gradient.start)})"
        )
    lower = (
        f"a third of the learning rate ({_text(h.lr / 3)} there)"
        if h.lr
        else "a third of the learning rate"
    )
    tries = (
        f"gradients grew before it, so start over (--fresh) with {lower}, or with a longer warm-up (--optimizer.warmup_epochs)"
        if grew
        else "gradients did not grow before it, so something overflowed at once: start over (--fresh) with --precision float32 if it was "
        f"another; if that does not help, with {lower} or a longer warm-up (--optimizer.warmup_epochs)"
    )
    return Finding(
        kind,
        "stop",
        "The loss is no longer a number: nothing after this step is learnt.",
        "; ".join(evidence),
        _sentence(tries),
    )


def check_divergence(h: History) -> Finding | None:
    if not h.loss.settled() or h.broken:
        return None
    kind, start, now, best = "divergence", h.loss.start, h.loss.now, h.loss.lowest
    evidence = f"loss {_text(start)} at the start, {_text(best)} at best, {_text(now)} {h.where}"
    advice = "Resume from a checkpoint before the rise with a third of the learning rate, or a longer warm-up."
    # MoCo begins far below its plateau, for the queue is random then, so the value at random counts as a start too.
    high = max(start, h.range[1]) + h.scale / 2 if h.range else start + h.scale
    if now > high:
        return Finding(
            kind, "warning", "The loss diverges: it is well above where it began.", evidence, advice
        )
    # Only where nothing but trouble raises a loss again: teachers, queues and their schedules do so in good health.
    steady = h.context.method.lower() in ("smi", "barlowtwins", "vicreg", "simclr")
    if steady and start - best > 0.2 * h.scale and now > best + 0.9 * (start - best):
        return Finding(
            kind,
            "warning",
            "The loss diverges: what it had gained is lost again.",
            evidence,
            advice,
        )
    if start - now > 0.02 * h.scale:
        return Finding(kind, "ok", "The loss falls.", evidence)
    return None


def check_gradient(h: History) -> Finding | None:
    kind = "exploding_gradient"
    if h.broken or h.num_lines < 2 * WINDOW:
        return None
    advice = "Lower the learning rate, lengthen the warm-up, or train in float32 precision."
    if h.bad_gradients >= WINDOW:
        evidence = (
            f"gradient norm infinite or no number in the last {h.bad_gradients} lines, {h.where}"
        )
        return Finding(
            kind, "warning", "Gradients are no numbers: nothing is learnt.", evidence, advice
        )
    if not h.gradient.settled():
        return None
    start, now = h.gradient.start, h.gradient.now
    evidence = f"gradient norm {_text(start)} at the start, {_text(now)} {h.where}"
    if start > 0 and min(h.gradient.last) > 100 * start:
        return Finding(kind, "warning", "Gradients explode.", evidence, advice)
    return (
        Finding(kind, "ok", "Gradients keep to their size.", evidence)
        if now <= 10 * start
        else None
    )


def check_collapse(h: History) -> Finding | None:
    kind, method = "collapse", h.context.method.lower()
    if h.broken or h.num_lines < 2 * WINDOW or h.context.batch_size < 2:
        return None
    advice = _AGAINST_COLLAPSE.get(
        method, "lower the learning rate, and check that nothing rewards equal outputs"
    )
    advice = _sentence(f"what is collapsed seldom recovers; start again: {advice}")
    spread = h.spread.now if h.spread.settled() else None
    if spread is not None:
        top = max(h.spread.last)
        evidence = f"feature std at {spread:.1%} of what directions spread evenly have, {h.where}; {h.spread.start:.1%} at the start"
        # Untrained networks give all images much the same direction: what counts is a fall, or that training has not parted them.
        if (top < 0.05 and top < 0.1 * h.spread.start) or (top < 0.01 and h.late(0.1)):
            return Finding(
                kind,
                "warning",
                "Features have collapsed: all images look the same to the encoder.",
                evidence,
                advice,
            )
    if (
        h.rank.settled()
        and h.context.feature_dim > 2
        and max(h.rank.last) < 1.2
        and (h.rank.start > 2 or h.late(0.3))
    ):
        evidence = f"effective rank {_text(h.rank.now)} of {_possible_rank(h)} {h.where}; {_text(h.rank.start)} at the start"
        return Finding(
            kind,
            "warning",
            "Features have collapsed: they differ in one direction only.",
            evidence,
            advice,
        )
    # Their loss is at its best where everything is the same; features that are spread out are a proof of health all the same.
    perfect = (
        h.range is not None
        and h.loss.settled()
        and max(h.loss.last) < h.range[0] + 0.001 * (h.range[1] - h.range[0])
    )
    if method in ("byol", "simsiam") and perfect and (spread is None or spread < 0.5):
        evidence = f"loss {h.loss.now:.5f} {h.where}: every prediction is exact, which on real images is too good to be true"
        return Finding(
            kind,
            "warning",
            "Embeddings have collapsed: all images have the same one.",
            evidence,
            advice,
        )
    return (
        Finding(kind, "ok", "Features differ between images.", evidence)
        if spread is not None and spread > 0.1
        else None
    )


_AGAINST_COLLAPSE = {
    "smi": "raise redundancy_weight two to ten times, or lower the learning rate",
    "barlowtwins": "raise redundancy_weight two to ten times, or lower the learning rate",
    "vicreg": "raise variance_weight, or lower the learning rate",
    "simclr": "take a larger batch or a lower temperature (0.1 to 0.5), or lower the learning rate",
    "byol": "bring the teacher's momentum nearer to 1, lower the learning rate, and keep batch norm in projector and predictor",
    "moco": "bring the momentum nearer to 1 (0.999), take a longer queue, or lower the learning rate",
    "mocov2": "bring the momentum nearer to 1 (0.999), take a longer queue, or lower the learning rate",
    "simsiam": "lower the learning rate, keep batch norm behind the projector's last layer, and the predictor's learning rate constant",
    "swav": "hold the prototypes still for the first epoch, lower epsilon (0.05 to 0.03), or lower the learning rate",
    "dino": "lower the teacher's temperature (0.04), bring its momentum nearer to 1, or lower the learning rate",
    "pirl": "take more negatives, or lower the learning rate",
}


def _possible_rank(h: History) -> int:
    return max(1, min(h.context.batch_size - 1, h.context.feature_dim))  # centring takes one


def check_rank(h: History) -> Finding | None:
    kind = "dimensional_collapse"
    if h.broken or not h.rank.settled() or _is_trouble(check_collapse(h)):
        return None
    start, now, possible = h.rank.start, h.rank.now, _possible_rank(h)
    evidence = f"effective rank {_text(now)} of {possible} {h.where}; {_text(start)} at the start"
    # An untrained network's features lie in few dimensions (2 to 10), and training opens them up. So a low rank is a finding only late, and
    # only where it has not risen.
    fallen = now < 0.05 * possible and now < 0.5 * start
    never_rose = now < 0.02 * possible and now < start
    if h.late(0.3) and (fallen or never_rose):
        advice = (
            "Raise redundancy_weight, or take a larger batch."
            if h.context.method.lower() in ("smi", "barlowtwins")
            else "Take a larger batch or a wider projector, or a lower learning rate; objectives that part coordinates or samples "
            "(SMI, BarlowTwins, VICReg) suffer least from it."
        )
        return Finding(
            kind,
            "warning",
            "Features use few of their dimensions, and fewer than before training.",
            evidence,
            advice,
        )
    return (
        Finding(kind, "ok", "Features use many dimensions.", evidence)
        if now > 0.1 * possible
        else None
    )


def check_learning(h: History) -> Finding | None:
    kind = "not_learning"
    if (
        h.broken
        or h.loss.count < 4 * WINDOW
        or not h.late(0.3)
        or _is_trouble(check_collapse(h))
        or _is_trouble(check_divergence(h))
    ):
        return None
    if len(h.probes) > 1 and h.probes[-1][0] > h.probes[0][0] + 0.05:
        return None  # whatever the loss says, features get better
    if h.range and h.loss.now < h.range[0] + 0.15 * h.scale:
        return None  # it had learnt most of what there is before the first lines
    moved = abs(h.loss.now - h.loss.start)
    if moved < 0.02 * h.scale and h.loss.highest - h.loss.lowest < 0.05 * h.scale:
        evidence = f"loss {_text(h.loss.start)} at the start, {_text(h.loss.now)} {h.where}"
        if h.range:
            evidence += f"; random embeddings give {_text(h.range[1])}"
        advice = "Raise the learning rate three to ten times; if that does not help, look at the views (`smi views`): they must share content."
        return Finding(kind, "warning", "The loss has not moved since the start.", evidence, advice)
    return None


def check_range(h: History) -> Finding | None:
    if h.broken or h.range is None or h.loss.count < WINDOW or _is_trouble(check_divergence(h)):
        return None
    kind, now, (lowest, random) = "loss_range", h.loss.now, h.range
    size = f"N = {h.context.batch_size}" + (
        f", K = {h.context.embedding_dim}" if h.context.embedding_dim else ""
    )
    limits = f"the least is {_text(lowest)}, random embeddings give {_text(random)}"
    evidence = f"loss {_text(now)} {h.where}; for {h.context.method} with {size} {limits}"
    if now < lowest - 0.02 * h.scale:
        advice = "The run's settings and the loss it trains with do not agree: check batch size, embedding width and weights in config.yaml."
        return Finding(kind, "warning", "The loss is lower than it can be.", evidence, advice)
    if not h.late(0.3) or not h.loss.settled():
        return None
    if now > random + h.scale / 4:
        advice = "Lower the learning rate, lengthen the warm-up, and look at the views (`smi views`): they must share content."
        return Finding(
            kind,
            "warning",
            "The loss is still worse than that of random embeddings.",
            evidence,
            advice,
        )
    return (
        Finding(kind, "ok", "The loss is where it should be.", evidence) if now <= random else None
    )


def check_pairs(h: History) -> Finding | None:
    kind = "anticorrelated"
    if (
        h.broken
        or h.context.method.lower() != "smi"
        or not h.anticorrelated.settled()
        or not h.late(0.1)
    ):
        return None
    evidence = f"{h.anticorrelated.now:.0%} of positive pairs have a negative correlation {h.where}"
    if min(h.anticorrelated.last) > 0.25:
        advice = (
            "SMI's dependency is even in the correlation, so opposite views count as aligned and stay so: start again with a lower "
            "learning rate or a longer warm-up, or with milder crops."
        )
        return Finding(
            kind,
            "warning",
            "Many views of the same image are opposites of each other.",
            evidence,
            advice,
        )
    return (
        Finding(kind, "ok", "Views of the same image agree in sign.", evidence)
        if h.anticorrelated.now < 0.1
        else None
    )


def check_waiting(h: History) -> Finding | None:
    kind = "data_bound"
    if not h.waiting.settled():
        return None
    speed = f", {h.speed.now:,.0f} images a second" if h.speed.count else ""
    evidence = f"{h.waiting.now:.0%} of the time is spent waiting for images {h.where}{speed}"
    if min(h.waiting.last) > 0.3:
        advice = (
            "What is learnt is right, only slow: keep decoded images in the cache (free some disk), use a smaller image size, or leave "
            "more cores to the run."
        )
        return Finding(kind, "warning", "The machine waits for images.", evidence, advice)
    return Finding(kind, "ok", "Images arrive in time.", evidence)


def check_accuracy(h: History) -> Finding | None:
    kind = "chance"
    if not h.probes:
        return None
    (first, _), (now, chance) = h.probes[0], h.probes[-1]
    evidence = f"nearest neighbours are right for {now:.1%}, guessing for {chance:.1%}, at step {h.probe_step}"
    late = h.probed_late(0.5)
    margin = min(0.02, chance / 2)  # what a small validation set may give by luck
    if late and all(accuracy < guess + margin for accuracy, guess in h.probes[-2:]):
        advice = "Look at the views (`smi views`) and at the other findings; if there are none, train longer or with a higher learning rate."
        return Finding(kind, "warning", "Features are no better than guessing.", evidence, advice)
    if (
        late
        and len(h.probes) >= 3
        and all(accuracy < first - 0.03 for accuracy, _ in h.probes[-2:])
    ):
        advice = "What the views change may be what tells the classes apart: choose milder ones (`smi views`), or lower the learning rate."
        return Finding(
            kind,
            "warning",
            "Features have become worse than in the beginning.",
            f"{evidence}; {first:.1%} at first",
            advice,
        )
    return (
        Finding(kind, "ok", "Features tell classes apart.", evidence)
        if now > chance + margin
        else None
    )


CHECKS = (
    check_finite,
    check_divergence,
    check_gradient,
    check_collapse,
    check_rank,
    check_learning,
    check_range,
    check_pairs,
    check_waiting,
    check_accuracy,
)


def _is_trouble(finding: Finding | None) -> bool:
    return finding is not None and finding.level != "ok"


def _text(number: float) -> str:
    return f"{number:.4g}"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
