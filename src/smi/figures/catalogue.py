"""List the figures, draw them from runs, and write them to files.

write_figure("gradient-norm", ["runs/smi", "runs/bt"], "gradient-norm.html")     # or .svg, .png
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smi.device import Runtime
from smi.errors import UserError
from smi.files import Sources, as_list, disk_errors, expand, write_whole
from smi.runs.collect import collect_runs
from smi.runs.names import dataset_name, name_encoders, name_runs, run_names
from smi.runs.run import Run, is_run
from smi.terminal import epochs_text, printable, quietly, say, suggest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from smi.figures.landscape import Pairs, Shape
    from smi.figures.sample import Features, Sample
    from smi.runs.encoder import Pretrained

    Values = NDArray[np.float64]

SUFFIXES = (".html", ".svg", ".png", ".pdf")
PNG_SCALE = 3  # pixels for each point, enough for 300 dpi in a column of a paper
NUM_PAIRS = 512
MAX_MAPS = 12


@dataclass(frozen=True)
class FigureRequest:
    """Hold the runs that a figure shows, and its options.

    encoders: sources of encoders without a run, as `smi.load` takes them.
    """

    runs: tuple[Run, ...]
    data: str | None = None
    images: int | None = None
    seed: int = 0
    runtime: Runtime = field(default_factory=Runtime)
    encoders: tuple[str, ...] = ()

    def named_runs(self) -> dict[str, Run]:
        """Return the runs by their display names; a run that is given twice is an error."""
        return name_runs(self.runs)

    def named_encoders(self) -> dict[str, str | Path]:
        """Return the sources of all encoders by their display names: those of runs come first."""
        runs = self.named_runs()
        return {name: run.folder for name, run in runs.items()} | name_encoders(self.encoders, runs)

    def root_of(self, run: Run) -> Path | None:
        """Return the folder of named datasets: the requested one, or that of the run."""
        root = self.runtime.root or run.facts.root
        return expand(root) if root else None


def runs_by_dataset(runs: Sequence[Run]) -> dict[str, dict[str, Run]]:
    """Return the runs of each dataset by display names that are the same for all datasets."""
    name_runs(runs)  # refuses a run that is given twice
    datasets: dict[str, dict[str, Run]] = {}
    for name, run in zip(run_names(runs, by_data=False), runs, strict=True):
        datasets.setdefault(dataset_name(run), {})[name] = run
    return datasets


# ---------------------------------------------------------------------- figures of logged values


def _gradient_norm(request: FigureRequest) -> Any:
    from smi.figures.gradient_norm import gradient_norm

    return gradient_norm(request.named_runs())


def _feature_std(request: FigureRequest) -> Any:
    from smi.figures.feature_std import feature_std

    return feature_std(request.named_runs())


def _ratio(request: FigureRequest) -> Any:
    from smi.figures.redundancy_ratio import ratio

    return ratio(request.named_runs())


def _accuracy_std(request: FigureRequest) -> Any:
    from smi.figures.accuracy_std import accuracy_std

    return accuracy_std(request.named_runs(), data=_label(request.data))


def _label(data: str | None) -> str | None:
    """Return the name that results have for the requested dataset."""
    from smi.data.sources import dataset_label

    return None if data is None else dataset_label(data)


def _std_summary(request: FigureRequest) -> Any:
    from smi.figures.std_summary import std_summary

    return std_summary(runs_by_dataset(request.runs))


def _linear_curves(request: FigureRequest) -> Any:
    from smi.figures.linear_curves import linear_curves

    data = _label(request.data)
    sets = runs_by_dataset(request.runs) if data is None else {data: request.named_runs()}
    return linear_curves(sets, data=data)


# ------------------------------------------------------------------ figures of features and images


def _eigenspectrum(request: FigureRequest) -> Any:
    from smi.figures.eigenspectrum import cumulative_variance, draw_shares

    shares, count, images = _statistics(request, cumulative_variance)
    return draw_shares(request.named_runs(), shares, count, of=images)


def _variance_violin(request: FigureRequest) -> Any:
    from smi.figures.variance_violin import draw_variances, relative_variance

    variances, count, images = _statistics(request, relative_variance)
    return draw_variances(request.named_runs(), variances, count, of=images)


def _statistics(
    request: FigureRequest, measure: "Callable[[Iterable[NDArray[np.float32]]], tuple[Values, int]]"
) -> "tuple[dict[str, Values], int, str]":
    """Measure the features of each run; also return the number of images and words for them.

    Ten images for each coordinate are used, if there are so many.
    """
    from smi.figures.sample import IMAGES_PER_COORDINATE, MAX_IMAGES, feature_blocks

    encoders = {
        name: _encoder(request, source) for name, source in request.named_encoders().items()
    }
    enough = IMAGES_PER_COORDINATE * max(encoder.dim for encoder in encoders.values())
    images = request.images or max(MAX_IMAGES, enough)
    sample = _sample(replace(request, images=images))
    measured = {
        name: measure(feature_blocks(encoder, sample)) for name, encoder in encoders.items()
    }
    count = max(number for _, number in measured.values())
    return {name: values for name, (values, _) in measured.items()}, count, sample.described


def _tsne(request: FigureRequest) -> Any:
    from smi.figures.tsne import embed_in_3d, labels_of, tsne

    features, images = _features(request)
    for row in features.values():
        labels_of(row, images)  # fails before the long computation
    points = {name: embed_in_3d(row.h.numpy(), seed=request.seed) for name, row in features.items()}
    return tsne(points, features, of=images)


def _energy_maps(request: FigureRequest) -> Any:
    from smi.figures.energy_maps import NUM_ROWS, choose_images, energies, energy_maps

    sample = _sample(request)
    encoders = {
        name: _encoder(request, source) for name, source in request.named_encoders().items()
    }
    resolution = max(encoder.resolution for encoder in encoders.values())
    count = min(request.images or NUM_ROWS, MAX_MAPS)
    images, captions = choose_images(sample, resolution, count)
    results = {name: energies(encoder, images) for name, encoder in encoders.items()}
    return energy_maps(
        images,
        {name: energy for name, (energy, _) in results.items()},
        captions,
        of=sample.described,
        positions=[positions for _, positions in results.values()],
    )


def _landscape(request: FigureRequest) -> Any:
    from smi.figures.landscape import landscape

    if not request.runs:
        return landscape()
    if len(request.runs) > 1:
        raise UserError(f"the landscape shows pairs of one run, not of {len(request.runs)}")
    shape, pairs, words = _pairs_of_run(request, request.runs[0])
    return landscape(shape, pairs, of=words)


def _pairs_of_run(request: FigureRequest, run: Run) -> "tuple[Shape, Pairs, str]":
    """Return a run's settings of SMI, pairs of views under its encoder, and words for them."""
    from smi.figures.landscape import Shape, positive_pairs
    from smi.figures.sample import MAX_IMAGES, Sample
    from smi.runs.restore import load_method, load_views

    config = run.resolve()
    state = run.state()
    method = load_method(run, state=state, device=request.runtime.choose_device())
    sample = Sample(
        request.data or config.data.source,
        request.root_of(run),
        min(request.images or NUM_PAIRS, MAX_IMAGES),
        request.seed,
        request.runtime.num_workers,
        "pretrain",
    )
    with sample.open(run.facts.resolution or config.views.size) as (store, _):
        images = store[:]
    shape = Shape.of_method(config.method)
    views = load_views(run, method)
    pairs = positive_pairs(method, views, images, seed=request.seed, eps=shape.eps)
    epoch = run.epoch(state["step"])
    after = f" after {epochs_text(epoch)}" if epoch is not None else ""
    (name,) = request.named_runs()
    return shape, pairs, f"{len(images):,} images of {sample.data}, embedded by {name}{after}"


def _sample(request: FigureRequest) -> "Sample":
    """Return a sample of the requested dataset, or of the one that the runs share."""
    from smi.figures.sample import MAX_IMAGES, Sample, source_of

    runs = request.named_runs()
    root = next((root for run in runs.values() if (root := request.root_of(run))), None)
    return Sample(
        source_of(runs, request.data),
        root or request.runtime.root,
        request.images or MAX_IMAGES,
        request.seed,
        request.runtime.num_workers,
    ).with_existing_split()


def _encoder(request: FigureRequest, source: str | Path) -> "Pretrained":
    """Load an encoder to the requested device."""
    from smi.runs.encoder import load

    return load(source).to(request.runtime.choose_device())


def _features(request: FigureRequest) -> "tuple[dict[str, Features], str]":
    """Return the features of the same images under each run, and words for the images."""
    from smi.figures.sample import features

    sample = _sample(request)
    rows = {
        name: features(_encoder(request, source), sample)
        for name, source in request.named_encoders().items()
    }
    return rows, sample.described


# ------------------------------------------------------------------------------- the catalogue


@dataclass(frozen=True)
class Figure:
    """Describe a figure and hold the function that draws it.

    max_rows: the number of rows of a comparison to show, with the first seed of each; None shows
    all of its runs.
    of_encoders: it needs only encoders, not the folders of their runs.
    """

    description: str
    draw: Callable[[FigureRequest], Any]
    min_runs: int = 1
    max_rows: int | None = None
    of_encoders: bool = False


FIGURES = {
    "landscape": Figure(
        "cost of a pair by its correlation under SMI and Barlow Twins; with a run, real pairs",
        _landscape,
        min_runs=0,
        max_rows=1,
    ),
    "gradient-norm": Figure("gradient norm at every step, rolling mean of 50", _gradient_norm),
    "feature-std": Figure("feature std over training", _feature_std),
    "accuracy-std": Figure(
        "linear accuracy against feature std, for several runs", _accuracy_std, min_runs=2
    ),
    "ratio": Figure("redundancy ÷ alignment over training", _ratio),
    "std-summary": Figure(
        "one row per dataset: feature std over training, and linear accuracy", _std_summary
    ),
    "linear-curves": Figure(
        "training and held-out accuracy over the epochs of the linear evaluation", _linear_curves
    ),
    "eigenspectrum": Figure(
        "cumulative explained variance of features: how many directions they use",
        _eigenspectrum,
        max_rows=99,
        of_encoders=True,
    ),
    "variance-violin": Figure(
        "variances of the coordinates of features: how evenly they vary",
        _variance_violin,
        max_rows=99,
        of_encoders=True,
    ),
    "energy-maps": Figure(
        "where encoders look: the norm of a late feature map over images",
        _energy_maps,
        max_rows=99,
        of_encoders=True,
    ),
    "tsne": Figure(
        "features of held-out images in three dimensions by t-SNE, coloured by class",
        _tsne,
        max_rows=99,
        of_encoders=True,
    ),
}


@dataclass(frozen=True)
class FigureList:
    """Hold the names and descriptions of figures."""

    descriptions: Mapping[str, str]

    def text(self) -> str:
        """Return one line for each figure."""
        return "\n".join(f"{name:17}{words}" for name, words in self.descriptions.items())

    def plain(self) -> list[dict[str, str]]:
        """Return a record for each figure."""
        return [{"figure": name, "description": words} for name, words in self.descriptions.items()]


def list_figures() -> FigureList:
    """Return the names and descriptions of all figures.

    print(list_figures().text())
    """
    return FigureList({name: figure.description for name, figure in FIGURES.items()})


# ---------------------------------------------------------------------------- drawing and writing


def write_figure(
    name: str,
    sources: Sources,
    out: str | Path,
    *,
    data: str | Path | None = None,
    images: int | None = None,
    seed: int = 0,
    runtime: Runtime = Runtime(),
    quiet: bool = False,
) -> Path:
    """Draw a figure of runs, write it to FILE.html, .svg, .png or .pdf, and return the path.

    write_figure("ratio", ["runs/smi", "runs/bt"], "ratio.html")

    An HTML file opens without a network. `draw_figure` explains the other arguments.
    """
    out = expand(out)
    figure = _find(name)
    _check(out)
    with quietly(quiet):
        drawn = draw_figure(name, sources, data=data, images=images, seed=seed, runtime=runtime)
        save_figure(drawn, name, out)
        say(f"{printable(str(out))}: {figure.description}")
    return out


def draw_figure(
    name: str,
    sources: Sources,
    *,
    data: str | Path | None = None,
    images: int | None = None,
    seed: int = 0,
    runtime: Runtime = Runtime(),
) -> Any:
    """Draw a figure of runs and return it as a plotly figure.

    draw_figure("tsne", ["runs/smi"], images=500).show()

    sources: folders of runs or of comparisons. A comparison stands for its finished runs; figures
    that take long show the first seed of each row. Figures of features also take encoders without
    a run, as `smi.load` does: files, timm:NAME, local-dir:PATH.
    data: the dataset to compute features of, or to read accuracies on; None is the one that the
    runs were pretrained on.
    images: the largest number of images. seed: chooses the images, and starts t-SNE.
    """
    figure = _find(name)
    encoders = tuple(str(source) for source in as_list(sources) if _is_encoder(source))
    if encoders and not figure.of_encoders:
        raise UserError(
            f"the figure {name} needs the folder of a run, and {encoders[0]} is only an encoder"
        )
    others = [source for source in as_list(sources) if str(source) not in encoders]
    folders = collect_runs(others, max_rows=figure.max_rows)
    number = len(folders) + len(encoders)
    if number < figure.min_runs:
        needed = "a run" if figure.min_runs == 1 else f"{figure.min_runs} runs"
        raise UserError(f"the figure {name} needs {needed} or more, not {number}")
    runtime.choose_device()  # refuses a device that does not exist
    request = FigureRequest(
        tuple(Run(folder) for folder in folders),
        None if data is None else str(data),
        images,
        seed,
        runtime,
        encoders,
    )
    return figure.draw(request)


def _is_encoder(source: str | Path) -> bool:
    """Return whether a source is an encoder without a run: of timm, a file, or an export."""
    from smi.runs.encoder import WEIGHTS, source_path

    path = expand(source)
    if source_path(source) != path or path.is_file():
        return True
    return not is_run(path) and any((path / name).is_file() for name in WEIGHTS)


def save_figure(drawn: Any, name: str, out: Path) -> None:
    """Write a plotly figure to a file of one of SUFFIXES; an existing file is replaced."""
    _check(out)
    with disk_errors(f"writing {out}"):
        write_whole(out, lambda partial: _write(drawn, partial, out.suffix.lower(), name))


def _find(name: str) -> Figure:
    if name not in FIGURES:
        raise UserError(f"there is no figure {name!r}: {suggest(name, FIGURES)}")
    return FIGURES[name]


def _check(out: Path) -> None:
    """Validate the path before the long computation."""
    suffix = out.suffix.lower()
    if suffix not in SUFFIXES:
        raise UserError(
            f"the file of a figure ends in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}, "
            f"not {out.name!r}"
        )
    if not out.parent.is_dir():
        raise UserError(f"there is no folder {out.parent} to write {out.name} to")
    if suffix != ".html":
        try:
            import kaleido  # noqa: F401
        except ImportError as error:
            raise UserError(
                f"{suffix} needs the package kaleido (pip install 'smi-ssl[figures]') and Chrome "
                "or Chromium; .html needs neither"
            ) from error


def _write(figure: Any, partial: Path, suffix: str, name: str) -> None:
    from smi.figures.style import write_html

    if suffix == ".html":
        description = FIGURES[name].description if name in FIGURES else ""
        write_html(figure, partial, name, f"{description[:1].upper()}{description[1:]}.")
    else:
        partial.write_bytes(_image(figure, suffix.removeprefix(".")))


def _image(figure: Any, format: str) -> bytes:
    """Draw an SVG, a PNG or a PDF in a browser, which kaleido starts.

    No figure needs MathJax, so kaleido does not load it from the network.
    """
    import plotly.io

    from smi.figures.style import harmless

    plotly.io.defaults.mathjax = None
    scale = PNG_SCALE if format == "png" else 1
    try:
        image: bytes = harmless(figure).to_image(format=format, scale=scale)
    except Exception as error:
        if "chrome" in f"{type(error).__name__} {error}".lower():
            raise UserError(
                f".{format} needs Chrome or Chromium, and kaleido could not find or start one: "
                "install one (.html needs none)"
            ) from error
        raise
    return image
