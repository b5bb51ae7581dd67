"""Check the history of a run: each check returns a problem, a sign of health, or None.

A value is the median of five lines, so that one unusual batch is not a finding. Some
checks wait until a given share of training is done.
"""

from dataclasses import dataclass
from typing import Literal

from smi.health.history import WINDOW, History, Probe
from smi.runs.names import criteria_text
from smi.terminal import counted

Level = Literal["ok", "warning", "stop"]
MAX_RISE = 10  # times a loss of unknown range may rise above its start, if it started from weights


@dataclass(frozen=True)
class Finding:
    """Hold one observation: a sentence, the numbers that show it, and what to do about it."""

    kind: str
    level: Level
    sentence: str
    evidence: str
    advice: str = ""


def run_checks(h: History) -> list[Finding]:
    """Return the findings of all checks that can decide."""
    findings = [run_check(h) for run_check in CHECKS]
    return [finding for finding in findings if finding]


def check_loss_is_finite(h: History) -> Finding | None:
    """Find a loss that is NaN or infinite, and its likely cause."""
    kind = "non_finite"
    if h.broken is None:
        if not h.num_lines:
            return None
        evidence = f"{counted(h.num_lines, 'line')} up to step {h.step}"
        return Finding(kind, "ok", "Every loss is a finite number.", evidence)
    step, value = h.broken
    parts = [f"loss {value} at step {step}"]
    if h.last_finite:
        parts.append(f"last finite loss {_text(h.last_finite[1])} at step {h.last_finite[0]}")
    if h.lr is not None:
        parts.append(f"learning rate {_text(h.lr)}")
    grew = False
    if h.largest_gradient and h.gradient.count:
        largest_step, norm = h.largest_gradient
        grew = norm > 10 * h.gradient.start > 0
        parts.append(
            f"largest gradient norm before it {_text(norm)} at step {largest_step} "
            f"(at the start {_text(h.gradient.start)})"
        )
    return Finding(
        kind,
        "stop",
        "The loss is NaN or infinite; the run is not learning.",
        "; ".join(parts),
        _advice_against_nan(h.lr, grew),
    )


def _advice_against_nan(lr: float | None, gradients_grew: bool) -> str:
    lower = "a third of the learning rate"
    if lr:
        lower += f" ({_text(lr / 3)})"
    if gradients_grew:
        return (
            f"Gradients grew before it, so start over (--fresh) with {lower}, "
            "or with a longer warm-up (--optimizer.warmup_epochs)."
        )
    return (
        "Gradients did not grow before it, so a number overflowed suddenly: start over (--fresh) "
        "with --precision float32 if the run had another precision. If that does not help, use "
        f"{lower} or a longer warm-up (--optimizer.warmup_epochs)."
    )


def check_divergence(h: History) -> Finding | None:
    """Find a loss that has risen instead of fallen."""
    if not h.loss.settled() or h.broken:
        return None
    kind, start, now, best = "divergence", h.loss.start, h.loss.now, h.loss.lowest
    evidence = f"loss {_text(start)} at the start, {_text(best)} at best, {_text(now)} {h.where}"
    advice = (
        "Resume from a checkpoint before the rise with a third of the learning rate, or with a "
        "longer warm-up."
    )
    # MoCo starts far below its plateau, because its queue is random at first. So the loss of random
    # embeddings counts as a start too. Weights that exist can give a loss of unknown range a low
    # start, from which it may rise to several times its size.
    unknown = start + (MAX_RISE if h.started else 1) * h.scale
    high = max(start, h.range[1]) + h.scale / 2 if h.range else unknown
    if now > high:
        sentence = "The loss diverges: it is well above its start."
        return Finding(kind, "warning", sentence, evidence, advice)
    # Only for losses that rise in trouble alone: with teachers and queues a healthy loss may rise.
    lost = start - best > 0.2 * h.scale and now > best + 0.9 * (start - best)
    if lost and not h.context.description.loss_may_rise:
        sentence = "The loss diverges: it has risen almost to its start again."
        return Finding(kind, "warning", sentence, evidence, advice)
    if start - now > 0.02 * h.scale:
        return Finding(kind, "ok", "The loss falls.", evidence)
    return None


def check_gradient(h: History) -> Finding | None:
    """Find gradients that explode, or are NaN or infinite."""
    kind = "exploding_gradient"
    if h.broken or h.num_lines < 2 * WINDOW:
        return None
    advice = "Lower the learning rate, use a longer warm-up, or train in float32 precision."
    if h.bad_gradients >= WINDOW:
        evidence = f"gradient norm NaN or infinite in the last {h.bad_gradients} lines, {h.where}"
        sentence = "Gradients are NaN or infinite; the run is not learning."
        return Finding(kind, "warning", sentence, evidence, advice)
    if not h.gradient.settled():
        return None
    start, now = h.gradient.start, h.gradient.now
    evidence = f"gradient norm {_text(start)} at the start, {_text(now)} {h.where}"
    if start > 0 and min(h.gradient.last) > 100 * start:
        return Finding(kind, "warning", "Gradients explode.", evidence, advice)
    if now <= 10 * start:
        return Finding(kind, "ok", "Gradients keep their size.", evidence)
    return None


def check_collapse(h: History) -> Finding | None:
    """Find features or embeddings that are the same for all images."""
    if h.broken or h.num_lines < 2 * WINDOW or h.context.batch_size < 2:
        return None
    return _small_spread(h) or _rank_of_one(h) or _perfect_loss(h) or _healthy_spread(h)


def _collapse(h: History, sentence: str, evidence: str) -> Finding:
    remedies = h.context.description.collapse_remedies
    advice = f"A collapsed run rarely recovers, so start again. {remedies}"
    return Finding("collapse", "warning", sentence, evidence, advice)


def _spread_evidence(h: History) -> str:
    return (
        f"feature std at {h.spread.now:.1%} of that of evenly spread directions, {h.where}; "
        f"{h.spread.start:.1%} at the start"
    )


def _small_spread(h: History) -> Finding | None:
    if not h.spread.settled():
        return None
    top = max(h.spread.last)
    # Untrained networks give all images nearly the same direction. A collapse is a fall from there,
    # or a spread that training has not increased.
    if (top < 0.05 and top < 0.1 * h.spread.start) or (top < 0.01 and h.late(0.1)):
        sentence = "Features have collapsed: all images look the same to the encoder."
        return _collapse(h, sentence, _spread_evidence(h))
    return None


def _rank_of_one(h: History) -> Finding | None:
    if not h.rank.settled() or h.context.feature_dim <= 2 or max(h.rank.last) >= 1.2:
        return None
    if h.rank.start > 2 or h.late(0.3):
        sentence = "Features have collapsed: they differ in one direction only."
        return _collapse(h, sentence, _rank_evidence(h))
    return None


def _perfect_loss(h: History) -> Finding | None:
    """Find the least loss where equal embeddings give it, unless features are spread out."""
    if not h.context.description.least_loss_is_collapse or h.range is None or not h.loss.settled():
        return None
    if max(h.loss.last) >= h.range[0] + 0.001 * (h.range[1] - h.range[0]):
        return None
    if h.spread.settled() and h.spread.now >= 0.5:
        return None
    evidence = (
        f"loss {h.loss.now:.5f} {h.where}: every prediction is exact, "
        "which does not happen with real images"
    )
    sentence = "Embeddings have collapsed: all images have the same embedding."
    return _collapse(h, sentence, evidence)


def _healthy_spread(h: History) -> Finding | None:
    if not h.spread.settled() or h.spread.now <= 0.1:
        return None
    return Finding("collapse", "ok", "Features differ between images.", _spread_evidence(h))


def _max_rank(h: History) -> int:
    return max(1, min(h.context.batch_size - 1, h.context.feature_dim))  # centring removes one


def _rank_evidence(h: History) -> str:
    return (
        f"effective rank {_text(h.rank.now)} of {_max_rank(h)} {h.where}; "
        f"{_text(h.rank.start)} at the start"
    )


def check_rank(h: History) -> Finding | None:
    """Find features that use few of their dimensions."""
    kind = "dimensional_collapse"
    if h.broken or not h.rank.settled() or _is_problem(check_collapse(h)):
        return None
    start, now, highest = h.rank.start, h.rank.now, _max_rank(h)
    # The features of an untrained network lie in few dimensions (2 to 10), and training increases
    # them. So a low rank is a finding only late, and only if it has not risen. Weights of many
    # kinds of images use more dimensions than the images of one kind need: if these are told apart
    # better than at the start, a fall is not a finding.
    fallen = now < 0.05 * highest and now < 0.5 * start
    never_rose = now < 0.02 * highest and now < start
    if h.late(0.3) and (fallen or never_rose) and not _is_better_than_start(h):
        return Finding(
            kind,
            "warning",
            "Features use few of their dimensions, and fewer than before training.",
            _rank_evidence(h),
            h.context.description.low_rank_remedies,
        )
    if now > 0.1 * highest:
        return Finding(kind, "ok", "Features use many dimensions.", _rank_evidence(h))
    return None


def check_learning(h: History) -> Finding | None:
    """Find a loss that does not move."""
    if h.broken or h.loss.count < 4 * WINDOW or not h.late(0.3):
        return None
    if _is_problem(check_collapse(h)) or _is_problem(check_divergence(h)):
        return None
    if len(h.probes) > 1 and h.probes[-1].score > h.probes[0].score + 0.05:
        return None  # features improve, although the loss does not show it
    if h.started and (_is_better_than_start(h) or not _is_near_random(h)):
        return None  # the weights gave a low loss, or one of unknown size, from the first step on
    if h.range and h.loss.now < h.range[0] + 0.15 * h.scale:
        return None  # it had learned most of what can be learned before the first lines
    moved = abs(h.loss.now - h.loss.start)
    if moved >= 0.02 * h.scale or h.loss.highest - h.loss.lowest >= 0.05 * h.scale:
        return None
    evidence = f"loss {_text(h.loss.start)} at the start, {_text(h.loss.now)} {h.where}"
    if h.range:
        evidence += f"; random embeddings give {_text(h.range[1])}"
    advice = (
        "Raise the learning rate three to ten times. If that does not help, look at the views "
        "(`smi data DIR --views FILE`): they must share content."
    )
    sentence = "The loss has not moved since the start."
    return Finding("not_learning", "warning", sentence, evidence, advice)


def check_range(h: History) -> Finding | None:
    """Find a loss outside the range of its method."""
    if h.broken or h.range is None or h.loss.count < WINDOW or _is_problem(check_divergence(h)):
        return None
    kind, now, (lowest, random) = "loss_range", h.loss.now, h.range
    sizes = f"N = {h.context.batch_size}"
    if h.context.embedding_dim:
        sizes += f", K = {h.context.embedding_dim}"
    evidence = (
        f"loss {_text(now)} {h.where}; for {h.context.method} with {sizes} "
        f"the least is {_text(lowest)}, random embeddings give {_text(random)}"
    )
    if now < lowest - 0.02 * h.scale:
        advice = (
            "The settings of the run do not match the loss it trains with: check batch size, "
            "embedding width and weights in config.yaml."
        )
        return Finding(kind, "warning", "The loss is lower than it can be.", evidence, advice)
    if not h.late(0.3) or not h.loss.settled():
        return None
    if now > random + h.scale / 4:
        advice = (
            "Lower the learning rate, use a longer warm-up, and look at the views "
            "(`smi data DIR --views FILE`): they must share content."
        )
        sentence = "The loss is still worse than that of random embeddings."
        return Finding(kind, "warning", sentence, evidence, advice)
    if now <= random:
        return Finding(kind, "ok", "The loss is in its expected range.", evidence)
    return None


def check_signs(h: History) -> Finding | None:
    """Find opposite views of the same image, where the loss does not prevent them."""
    kind = "anticorrelated"
    if h.broken or not h.context.description.ignores_sign:
        return None
    if not h.anticorrelated.settled() or not h.late(0.1):
        return None
    evidence = f"{h.anticorrelated.now:.0%} of positive pairs have a negative correlation {h.where}"
    if min(h.anticorrelated.last) > 0.25:
        advice = (
            "The loss is even in the correlation, so opposite views count as aligned and stay "
            "opposite. Start again with a lower learning rate, a longer warm-up or milder crops."
        )
        sentence = "Many views of the same image are opposites of each other."
        return Finding(kind, "warning", sentence, evidence, advice)
    if h.anticorrelated.now < 0.1:
        return Finding(kind, "ok", "Views of the same image agree in sign.", evidence)
    return None


def check_waiting(h: History) -> Finding | None:
    """Find a run that spends much of its time waiting for images."""
    kind = "data_bound"
    if not h.waiting.settled():
        return None
    speed = f", {h.speed.now:,.0f} images a second" if h.speed.count else ""
    evidence = f"{h.waiting.now:.0%} of the time is spent waiting for images {h.where}{speed}"
    if min(h.waiting.last) > 0.3:
        advice = (
            "The run learns correctly but slowly: keep decoded images in the cache (free some disk "
            "space), use a smaller image size, or leave more cores to the run."
        )
        return Finding(kind, "warning", "The machine waits for images.", evidence, advice)
    return Finding(kind, "ok", "Images arrive in time.", evidence)


def check_accuracy(h: History) -> Finding | None:
    """Find features that are no better than guessing, or that have become worse."""
    kind = "chance"
    if not h.probes:
        return None
    first, now, chance = h.probes[0].score, h.probes[-1].score, h.probes[-1].chance
    right = "nearest neighbours are right"
    if h.probes[-1].criterion == "retrieval":
        right = "a view finds the other view of its image"
    evidence = f"{right} for {now:.1%}, guessing for {chance:.1%}, at step {h.probe_step}"
    if h.start_probe is not None and not h.started:
        evidence += f"; the untrained encoder for {first:.1%}"
    late = h.probed_late(0.5)
    margin = min(0.02, chance / 2)  # a small validation set may give this by luck
    if late and all(probe.score < probe.chance + margin for probe in h.probes[-2:]):
        advice = (
            "Look at the views (`smi data DIR --views FILE`) and at the other findings. If there "
            "are none, train longer or with a higher learning rate."
        )
        return Finding(kind, "warning", "Features are no better than guessing.", evidence, advice)
    # `check_start` compares with the encoder before training, if that was measured.
    worse = h.start_probe is None and all(p.score < first - 0.03 for p in h.probes[-2:])
    if late and len(h.probes) >= 3 and worse:
        advice = (
            "The views may change the features that separate the classes: choose milder ones "
            "(`smi data DIR --views FILE`), or lower the learning rate."
        )
        sentence = "Features have become worse than at the start."
        evidence = f"{evidence}; {first:.1%} at first"
        return Finding(kind, "warning", sentence, evidence, advice)
    if now > chance + margin and (h.started or h.start_probe is None or _is_better_than_start(h)):
        separated = "classes" if h.probes[-1].criterion == "knn" else "images"
        if criteria := criteria_text(h.probes[-1].criteria):
            evidence += f"; without labels: {criteria}"
        return Finding(kind, "ok", f"Features separate the {separated}.", evidence)
    return None


def check_start(h: History) -> Finding | None:
    """Compare the encoder with the one before training, on held-out images.

    Weights that exist need not become better; an untrained encoder must.
    """
    kind = "start"
    start, gain = h.start_probe, h.gain
    if start is None or gain is None:
        return None
    evidence = _start_evidence(h, start)
    before = "the weights it started from" if h.started else "an untrained one"
    if gain > start.noise:
        return Finding(kind, "ok", f"The encoder is better than {before}.", evidence)
    if gain >= -start.noise and h.started:
        return Finding(kind, "ok", f"The encoder is about as good as {before}.", evidence)
    if not h.probed_late(0.5):
        return None  # new weights behind the encoder disturb it at first
    if h.started:
        sentence, advice = f"The encoder is worse than {before}.", _advice_against_worse(h)
    else:
        sentence = f"The encoder is hardly better than {before}."
        if gain < -start.noise:
            sentence = f"The encoder is worse than {before}."
        advice = (
            "Train longer or on more images, and look at the views "
            "(`smi data DIR --views FILE`): they must keep what separates the images."
        )
    return Finding(kind, "warning", sentence, evidence, advice)


def _start_evidence(h: History, start: Probe) -> str:
    """Return the scores now and at the start, and which encoder is kept."""
    now = h.probes[-1]
    name = "kNN" if now.criterion == "knn" else "retrieval of views"
    evidence = (
        f"{name} on held-out images {now.score:.1%} at {_when(now)}, {start.score:.1%} at the start"
    )
    return f"{evidence}; kept: {h.context.kept}" if h.context.kept else evidence


def _when(probe: Probe) -> str:
    """Return the epoch of a probe in words."""
    return f"step {probe.step}" if probe.epoch is None else f"epoch {probe.epoch:.3g}"


def _advice_against_worse(h: History) -> str:
    advice = "Lower --optimizer.lr or train for fewer epochs."
    if h.context.statistics != "keep":
        advice += " Check that batch norm statistics are kept (--init.statistics keep)."
    advice += (
        " Look at the views (`smi data DIR --views FILE`): they must keep what separates images."
    )
    if h.context.select == "last":
        advice += " With select=best, the encoder of the best probe is exported."
    return advice


def _is_better_than_start(h: History) -> bool:
    """Return whether the encoder is clearly better than the weights that it started from."""
    return h.start_probe is not None and (h.gain or 0.0) > h.start_probe.noise


def _is_near_random(h: History) -> bool:
    """Return whether the loss is near that of random embeddings, or above it."""
    return h.range is not None and h.loss.now > h.range[1] - 0.15 * h.scale


CHECKS = (
    check_loss_is_finite,
    check_divergence,
    check_gradient,
    check_collapse,
    check_rank,
    check_learning,
    check_range,
    check_signs,
    check_waiting,
    check_accuracy,
    check_start,
)


def _is_problem(finding: Finding | None) -> bool:
    return finding is not None and finding.level != "ok"


def _text(number: float) -> str:
    return f"{number:.4g}"
