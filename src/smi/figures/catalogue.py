"""The paper's figures and tables from runs: what `smi figure` and `smi table` do.

write_figure("gradient-norm", ["runs/smi", "runs/bt"], "gradient-norm.html")     # or .svg, .png
print_table(3, ["runs/smi", "runs/bt"])
"""

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smi.device import choose_device, keep_memory
from smi.errors import UserError
from smi.files import disk_errors, expand, write_whole
from smi.runs.collect import collect_runs
from smi.runs.run import Run
from smi.terminal import printable

if TYPE_CHECKING:
    pass

SUFFIXES = (".html", ".svg", ".png")
SCALE = 3  # pixels of a .png for each point, enough for 300 to the inch in a column
MOST = 2000  # images, unless a figure says otherwise


@dataclass(frozen=True)
class Asked:
    """What a figure is made of."""

    runs: tuple[Run, ...]
    data: str | None = None
    root: Path | None = None
    images: int | None = None
    seed: int = 0
    device: str | None = None
    num_workers: int | None = None

    def called(self, *, by_data: bool = True) -> dict[str, Run]:
        from smi.runs.names import called

        return called(self.runs, by_data=by_data)

    def by_data(self) -> dict[str, dict[str, Run]]:
        """Of each data set its runs, called the same on all of them."""
        from smi.runs.names import data_of, names_of

        self.called()  # none is given twice
        found: dict[str, dict[str, Run]] = {}
        for name, run in zip(names_of(self.runs, by_data=False), self.runs, strict=True):
            found.setdefault(data_of(run), {})[name] = run
        return found

    def evaluated_on(self) -> str | None:
        """As results spell it."""
        from smi.data.sources import NAMES

        return (
            None
            if self.data is None
            else self.data
            if self.data in NAMES
            else f"{expand(self.data).resolve().name}/"
        )

    def root_of(self, run: Run) -> Path | None:
        """Where named sets lie: as asked, or where the run found them."""
        root = self.root or run.about.get("root")
        return Path(root) if root else None


def _gradient_norm(asked: Asked) -> Any:
    from smi.figures.gradient_norm import gradient_norm

    return gradient_norm(asked.called())


def _feature_std(asked: Asked) -> Any:
    from smi.figures.feature_std import feature_std

    return feature_std(asked.called())


def _ratio(asked: Asked) -> Any:
    from smi.figures.ratio import ratio

    return ratio(asked.called())


def _accuracy_std(asked: Asked) -> Any:
    from smi.figures.accuracy_std import accuracy_std

    return accuracy_std(asked.called(), data=asked.evaluated_on())


def _std_summary(asked: Asked) -> Any:
    from smi.figures.std_summary import std_summary

    return std_summary(asked.by_data())


def _linear_curves(asked: Asked) -> Any:
    from smi.figures.linear_curves import linear_curves

    data = asked.evaluated_on()
    return linear_curves(asked.by_data() if data is None else {data: asked.called()}, data=data)


def _eigenspectrum(asked: Asked) -> Any:
    from smi.figures.eigenspectrum import eigenspectrum

    found, of = _features(asked)
    return eigenspectrum(
        asked.called(), {name: features.h for name, features in found.items()}, of=of
    )


def _variance_violin(asked: Asked) -> Any:
    from smi.figures.variance_violin import variance_violin

    found, of = _features(asked)
    return variance_violin(
        asked.called(), {name: features.h for name, features in found.items()}, of=of
    )


def _tsne(asked: Asked) -> Any:
    from smi.figures.tsne import embed, labels_of, tsne

    found, of = _features(asked)
    for features in found.values():
        labels_of(features, of)  # before the long part
    return tsne(
        {name: embed(features.h.numpy(), seed=asked.seed) for name, features in found.items()},
        found,
        of=of,
    )


def _energy_maps(asked: Asked) -> Any:
    from smi.figures.energy_maps import ROWS, energies, energy_maps, some_images

    runs = asked.called()
    encoders = {name: _encoder(asked, run) for name, run in runs.items()}
    sample = _sample(asked, runs)
    resolution = max(encoder.resolution for encoder in encoders.values())
    images, captions = some_images(sample, resolution, min(asked.images or ROWS, 12))
    found = {name: energies(encoder, images) for name, encoder in encoders.items()}
    maps, places = (
        {name: energy for name, (energy, _) in found.items()},
        [place for _, place in found.values()],
    )
    return energy_maps(images, maps, captions, of=sample.described, places=places)


def _landscape(asked: Asked) -> Any:
    from smi.figures.landscape import Shape, landscape, positive_pairs

    if not asked.runs:
        return landscape()
    if len(asked.runs) > 1:
        raise UserError(f"the landscape shows pairs of one run, not of {len(asked.runs)}")
    from smi.figures.sample import Sample
    from smi.runs.restore import load_method, load_views

    (run,) = asked.runs
    config = run.resolve()
    state = run.state()
    method = load_method(run, device=choose_device(asked.device), state=state)
    source = asked.data or config.data.source
    sample = Sample(
        source,
        asked.root_of(run),
        min(asked.images or 512, MOST),
        asked.seed,
        asked.num_workers,
        "pretrain",
    )
    with sample.open(run.about.get("resolution") or config.views.size) as (store, _):
        images = store[:]
    settings = {
        name: config.method[name]
        for name in ("target", "shift", "eps")
        if config.method["name"] == "SMI"
    }
    shape = Shape(**settings)
    pairs = positive_pairs(method, load_views(run, method), images, seed=asked.seed, eps=shape.eps)
    epoch = run.epoch(state["step"])
    after = f" after {epoch:g} epochs" if epoch is not None else ""
    (name,) = asked.called()
    return landscape(
        shape, pairs, of=f"{len(images):,} images of {sample.data}, embedded by {name}{after}"
    )


def _sample(asked: Asked, runs: dict[str, Run]) -> Any:
    from smi.figures.sample import Sample, source_of

    root = next((root for run in runs.values() if (root := asked.root_of(run))), None)
    return Sample(
        source_of(runs, asked.data), root, asked.images or MOST, asked.seed, asked.num_workers
    ).found()


def _encoder(asked: Asked, run: Run) -> Any:
    from smi.runs.encoder import load

    return load(run.folder).to(choose_device(asked.device))


def _features(asked: Asked) -> tuple[dict[str, Any], str]:
    from smi.figures.sample import features

    runs = asked.called()
    sample = _sample(asked, runs)
    return {
        name: features(_encoder(asked, run), sample) for name, run in runs.items()
    }, sample.described


@dataclass(frozen=True)
class Figure:
    sentence: str
    make: Callable[[Asked], Any]
    least: int = 1  # runs
    rows: int | None = (
        None  # of a comparison so many at most, the first seed of each; None: all its runs
    )


FIGURES = {
    "landscape": Figure(
        "what a pair of some correlation costs under SMI and Barlow Twins; of a run, real pairs of views",
        _landscape,
        0,
        1,
    ),
    "gradient-norm": Figure(
        "norm of the gradient at every step, rolling mean of 50", _gradient_norm
    ),
    "feature-std": Figure("spread of features over training", _feature_std),
    "accuracy-std": Figure(
        "accuracy of a linear classifier against the spread of features, of several runs",
        _accuracy_std,
        2,
    ),
    "ratio": Figure("redundancy ÷ alignment over training", _ratio),
    "std-summary": Figure(
        "a row for each data set: spread of features over training, and accuracy", _std_summary
    ),
    "linear-curves": Figure(
        "training and held-out accuracy over the epochs of the linear evaluation", _linear_curves
    ),
    "eigenspectrum": Figure(
        "how many directions features use: cumulative explained variance", _eigenspectrum, rows=99
    ),
    "variance-violin": Figure(
        "how evenly the coordinates of features vary", _variance_violin, rows=99
    ),
    "energy-maps": Figure(
        "where encoders look: length of a late feature map, over some images", _energy_maps, rows=99
    ),
    "tsne": Figure("features of held-out images in three dimensions, by class", _tsne, rows=99),
}


def print_figures() -> None:
    for name, figure in FIGURES.items():
        print(f"{name:17}{figure.sentence}")


def write_figure(name: str, sources: Sequence[str | Path], out: str | Path, **asked: Any) -> Path:
    """Write a figure of runs to FILE.html, which opens without a network, or to FILE.svg or FILE.png; give its path.

    sources: folders of runs. What else can be asked: see `draw_figure`.
    """
    out = expand(out)
    _found(name)
    _check(out)
    save_figure(draw_figure(name, sources, **asked), name, out)
    print(f"{printable(str(out))}: {FIGURES[name].sentence}")
    return out


def draw_figure(
    name: str,
    sources: Sequence[str | Path],
    *,
    data: str | Path | None = None,
    root: str | Path | None = None,
    images: int | None = None,
    seed: int = 0,
    device: str | None = None,
    num_workers: int | None = None,
) -> Any:
    """A figure of plotly's, to be shown or saved.

    sources: folders of runs, or of comparisons, which stand for their finished runs; figures that take long have the first seed of each of
    their rows. data: images that features are taken of, or accuracies on; None: what the runs were pretrained on. images: so
    many at most. seed: which images, and t-SNE's start.
    """
    figure = _found(name)
    sources = collect_runs(sources, max_rows=figure.rows)
    if len(sources) < figure.least:
        raise UserError(
            f"the figure {name} takes {'a run' if figure.least == 1 else f'{figure.least} runs'} or more, not {len(sources)}"
        )
    asked = Asked(
        tuple(Run(source) for source in sources),
        None if data is None else str(data),
        None if root is None else expand(root),
        images,
        seed,
        device,
        num_workers,
    )
    if choose_device(device).type == "cpu":
        keep_memory()
    return figure.make(asked)


def save_figure(drawn: Any, name: str, out: Path) -> None:
    _check(out)
    with disk_errors(f"writing {out}"):
        write_whole(out, lambda partial: _write(drawn, partial, out.suffix.lower(), name))


def _found(name: str) -> Figure:
    if name not in FIGURES:
        close = difflib.get_close_matches(name, FIGURES, 1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(FIGURES)}"
        raise UserError(f"there is no figure {name!r}: {hint}")
    return FIGURES[name]


def _check(out: Path) -> None:
    """Before anything is computed."""
    suffix = out.suffix.lower()
    if suffix not in SUFFIXES:
        raise UserError(
            f"a figure is a file that ends in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}, not {out.name!r}"
        )
    if not out.parent.is_dir():
        raise UserError(f"there is no folder {out.parent} to write {out.name} to")
    if suffix != ".html":
        try:
            import kaleido  # noqa: F401
        except ImportError as error:
            raise UserError(
                f"{suffix} needs the package kaleido: pip install 'smi-ssl[figures]', and Chrome or Chromium (.html needs neither)"
            ) from error


def _write(figure: Any, partial: Path, suffix: str, name: str) -> None:
    if suffix == ".html":
        from smi.figures.style import write_html

        return write_html(figure, partial, f"smi: {name}")
    partial.write_bytes(_image(figure, suffix.removeprefix(".")))
    return None


def _image(figure: Any, format: str) -> bytes:
    """By way of a browser, which kaleido starts; MathJax, which no figure has need of, is not asked of the network."""
    import plotly.io

    from smi.figures.style import harmless

    plotly.io.defaults.mathjax = None
    try:
        found: bytes = harmless(figure).to_image(
            format=format, scale=SCALE if format == "png" else 1
        )
    except Exception as error:
        if "chrome" in f"{type(error).__name__} {error}".lower():
            raise UserError(
                f".{format} is drawn by Chrome or Chromium, and kaleido found or could start none: install one (.html needs none)"
            ) from error
        raise
    return found
