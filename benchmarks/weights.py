"""Sweep SMI's λ over sizes of batches, embeddings, numbers of views and lengths of training.

    python benchmarks/weights.py run --root DIR     DIR holds CIFAR-10's folder; can be repeated
    python benchmarks/weights.py show               prints the table
    python benchmarks/weights.py draw               draws docs/weights.png

The number of redundant pairs for each aligned one grows with N - 1. So the sweep is over
λ (N - 1), and the question is whether its best value is the same on every line. The encoder is
that of cifar10-small. kNN is measured on held-out training images, with one seed.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

from machine import RESULTS, command, footer, stamp, warn_if_dirty

OUT = RESULTS / "weights.json"
SUMS = (2, 7, 20, 60)  # λ (N - 1)
COMMON = {
    "data.images": 5000,
    "epochs": 3,
    "data.validation": 0.1,
    "log.probe_every": 100,
    "log.probe_images": 5000,
    "precision": "float32",
    "views.input_size": None,
    "method.widths": [1024, 1024, 1024],
    "method.target": 1.0,  # the paper's; the recipe has another target and shift
    "method.shift": 0.06,
}
LINES: dict[str, dict[str, Any]] = {
    "N = 64": {"batch_size": 64},
    "N = 128": {"batch_size": 128},
    "N = 256": {"batch_size": 256},
    "N = 512": {"batch_size": 512},
    "N = 128, K = 128": {"batch_size": 128, "method.widths": [1024, 1024, 128]},
    "N = 128, four views": {"batch_size": 128, "method.views": 4},
    "N = 128, 9 epochs": {"batch_size": 128, "epochs": 9},
}


def run(root: Path) -> dict[str, Any]:
    """Train all runs that are not in the file yet, and return the file's content."""
    import torch

    import smi

    found = json.loads(OUT.read_text()) if OUT.is_file() else {"lines": {}}
    for line, sizes in LINES.items():
        done = found["lines"].setdefault(line, {})
        for total in SUMS:
            if str(total) in done:
                continue
            settings = COMMON | sizes
            settings["method.redundancy_weight"] = total / (settings["batch_size"] - 1)
            with tempfile.TemporaryDirectory() as folder:
                trained = smi.pretrain(
                    "cifar10-small",
                    out=f"{folder}/run",
                    overrides=settings,
                    runtime=smi.Runtime(root=root),
                    quiet=True,
                )
                done[str(total)] = trained.probes()[-1]["probe"]["knn"]
            print(f"{line}, λ (N - 1) = {total}: {done[str(total)]:.3f}", flush=True)
            found |= stamp(f"{torch.get_num_threads()} thread(s)", torch=torch.__version__)
            OUT.write_text(json.dumps(found, indent=2) + "\n")
    return found


def table(found: dict[str, Any]) -> str:
    """Format kNN as Markdown, the best of each line in bold."""
    lines = [f"| λ (N − 1) | {' | '.join(map(str, SUMS))} |", "|---|" + "---:|" * len(SUMS)]
    for line, scores in found["lines"].items():
        best = max(scores.values())
        cells = [
            f"**{100 * score:.1f}**" if score == best else f"{100 * score:.1f}"
            for score in (scores[str(total)] for total in SUMS if str(total) in scores)
        ]
        lines.append(f"| {line} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", footer(found)])


def draw(found: dict[str, Any]) -> Path:
    """Draw kNN against λ, and against λ (N - 1)."""
    from plotly.subplots import make_subplots

    from smi.figures.style import look
    from smi.pages.palette import GRID, INK, WHITE

    figure = make_subplots(1, 2, shared_yaxes=True, horizontal_spacing=0.04)
    for number, (line, scores) in enumerate(found["lines"].items()):
        others = (COMMON | LINES[line])["batch_size"] - 1
        accuracies = [100 * scores[str(total)] for total in SUMS]
        for column, weights in ((1, [total / others for total in SUMS]), (2, list(SUMS))):
            style = {"line": look(number).line(), "marker": look(number).marker(max_shown=0)}
            figure.add_scatter(
                x=weights,
                y=accuracies,
                name=line,
                **style,
                showlegend=column == 2,
                row=1,
                col=column,
            )
    axis = {"type": "log", "gridcolor": GRID, "dtick": 1}
    figure.update_xaxes(axis | {"title": "λ"}, col=1)
    figure.update_xaxes(axis | {"title": "λ (N − 1)"}, col=2)
    figure.add_vline(x=7, line={"color": INK, "dash": "dot", "width": 1}, col=2)
    figure.update_yaxes(gridcolor=GRID, ticksuffix=" %")
    figure.update_yaxes(title="kNN, held-out training images", col=1)
    font = {"size": 14, "color": INK}
    colours = {"plot_bgcolor": WHITE, "paper_bgcolor": WHITE, "font": font}
    figure.update_layout(width=960, height=420, margin={"t": 20, "r": 10}, **colours)
    out = RESULTS.parent / "docs" / "weights.png"
    out.write_bytes(figure.to_image(format="png", scale=1.4))
    return out


def main() -> None:
    parser = command(__doc__)
    parser.add_argument("action", choices=("run", "show", "draw"))
    parser.add_argument("--root", type=Path)
    given = parser.parse_args()
    if given.action == "run":
        warn_if_dirty()
        run(given.root)
    found = json.loads(OUT.read_text())
    print(draw(found) if given.action == "draw" else table(found))


if __name__ == "__main__":
    main()
