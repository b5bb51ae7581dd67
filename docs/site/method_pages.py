"""Write a page for each method, from its class and from the results that are stored here."""

import inspect
import json
import re
from pathlib import Path
from typing import Any

import torch
from api_pages import FIELD
from picture import draw_method
from places import ROOT
from torch import nn

from smi.methods import METHOD_NAMES, LossSetup, Method, create_method, find_method
from smi.methods.catalogue import describe_method
from smi.nn import Encoder
from smi.paper.cost import BATCH, DEVICES, DIM, LossCost, count_costs, giga

NUM_FEATURES = 2048  # of a ResNet-50
NUM_IMAGES = 1_281_167  # of ImageNet, for methods that store something of every image
LOSS_NAMES = {"SimCLR": "NT-Xent"}  # where a loss has another name than its method
RESULTS = ROOT / "results"
DATASETS = {"cifar10-small": "CIFAR-10", "imagenette-small": "photographs", "digits": "digits"}


def write_pages(folder: Path) -> list[str]:
    """Write a page for each built-in method; return the names of the pages."""
    folder.mkdir(parents=True)
    names = []
    for name in METHOD_NAMES:
        (folder / f"{name}.md").write_text(page(name), encoding="utf-8")
        names.append(f"methods/{name}")
    return names


def page(name: str) -> str:
    """Return the page of a method."""
    method = find_method(name)
    about, fields = split_docstring(method)
    with torch.device("meta"):  # no memory: the heads of some methods are large
        instance = create_method(name, Encoder(nn.Identity(), NUM_FEATURES), num_images=NUM_IMAGES)
    parts = [
        f"# {method.display_name}",
        about,
        f'<figure class="method">\n{draw_method(instance)}\n</figure>',
        f"**Paper**: {linked(method.paper)}",
        "## Settings",
        settings_table(name),
        fields,
        "## Cost",
        cost(instance),
        "## Health",
        health(method, instance),
        "## Numbers measured here",
        numbers(name),
        "## Code",
        code(name, method),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def split_docstring(method: type[Method]) -> tuple[str, str]:
    """Return the sentences about a method, and its settings as a list."""
    sentences: list[str] = []
    fields: list[str] = []
    for line in inspect.cleandoc(method.__doc__ or "").splitlines():
        if field := FIELD.match(line):
            names = ", ".join(f"`{name}`" for name in field[1].split(", "))
            fields.append(f"- {names}: {field[2]}")
        elif fields:
            fields[-1] += f" {line.strip()}" if line.strip() else ""
        else:
            sentences.append(line)
    return "\n".join(sentences).strip(), "\n".join(fields)


def linked(paper: str) -> str:
    """Return the name of a paper with a link to arXiv."""
    return re.sub(r"arXiv:([\d.]+)", r"[arXiv:\1](https://arxiv.org/abs/\1)", paper)


def settings_table(name: str) -> str:
    """Return the settings of a method, which its constructor names."""
    rows = ["| `--method.…` | type | default |", "|---|---|---|"]
    for row in describe_method(name).settings:
        kind = str(row["type"]).replace("|", "or").replace("typing.", "")
        rows.append(f"| `{row['setting']}` | {kind} | `{row['default']}` |")
    return "\n".join(rows)


def cost(method: Method) -> str:
    """Return what a method needs beside its encoder."""
    heads = sum(
        parameter.numel()
        for name, parameter in method.named_parameters()
        if parameter.requires_grad and not name.startswith("encoder.")
    )
    lines = [
        f"- **Heads**: {heads / 1e6:.1f} million trained parameters with {NUM_FEATURES} features.",
        "- **Passes**: "
        + (
            "a teacher, without a gradient, beside the encoder."
            if method.momentum_encoder
            else "the encoder alone; there is no teacher."
        ),
        f"- **Stored** of earlier samples: {method.stored or 'nothing'}.",
        "- **Exchanged** between devices: "
        + ("gradients, and embeddings or codes." if method.gathers else "gradients only.")
        + (
            " Batch norms are synchronised, as published."
            if method.synchronises_batch_norm
            else " Batch norms are not synchronised."
        ),
    ]
    if counted := loss_cost(method):
        sent = f"{counted.bytes_sent / 1e6:.1f} MB sent" if counted.bytes_sent else "nothing sent"
        lines.append(
            f"- **Loss**, counted for {BATCH} samples on each of {DEVICES} devices and {DIM} "
            f"coordinates: {giga(counted.device_macs)} GMACs and {sent} on each (`smi table 2`)."
        )
    if method.multicrop:
        lines.append("- **Views**: small ones beside the large ones, by default (multi-crop).")
    return "\n".join(lines) + "\n\nMeasured times: [results](../results.md#cost-of-a-step)."


def loss_cost(method: Method) -> LossCost | None:
    """Return the counted cost of the method's loss, if it is counted."""
    name = LOSS_NAMES.get(method.display_name, method.display_name)
    return next((row for row in count_costs() if row.loss == name), None)


def health(method: type[Method], instance: Method) -> str:
    """Return what `smi doctor` expects of a method, and its advice."""
    lines = []
    dim = embedding_dim(instance)
    if limits := method.loss_range(LossSetup(BATCH, dim)):
        sizes = f"a batch of {BATCH}" + (f" and {dim} coordinates" if dim else "")
        lines.append(
            f"- **Loss**: {limits[1]:.4g} for random embeddings and {limits[0]:.4g} at best, with "
            f"{sizes} and the default settings."
        )
    lines.append(
        "- The loss of a run that learns "
        + ("may rise for a while." if method.loss_may_rise else "falls.")
    )
    if method.least_loss_is_collapse:
        lines.append("- **The least loss is collapse**: equal embeddings of all images.")
    if method.ignores_sign:
        lines.append("- Views with a negative correlation count as aligned; it is watched.")
    lines.append(f"- **Against collapse**: {method.collapse_remedies}")
    lines.append(f"- **Against features with few directions**: {method.low_rank_remedies}")
    return "\n".join(lines) + "\n\nThe checks: [health](../architecture.md#health)."


def embedding_dim(method: Method) -> int | None:
    """Return the number of coordinates that the projector gives."""
    layers = list(getattr(method, "projector", nn.Identity()).modules())
    widths = [layer.out_features for layer in layers if isinstance(layer, nn.Linear)]
    return widths[-1] if widths else None


def numbers(name: str) -> str:
    """Return the stored results of a method; the pages they link to say how they were made."""
    parts = []
    chosen = read("methods-cifar10-small")
    if name in chosen.get("trials", {}):
        knn = chosen["trials"][name][""]["knn"]
        parts.append(
            f"- kNN on CIFAR-10, 6,000 images, one seed: **{knn:.1%}**; the untrained encoder has "
            f"{chosen['untrained']:.1%} ([all methods](../pretraining.md#all-methods))."
        )
    for recipe, dataset in DATASETS.items():
        if row := compared(recipe, name):
            parts.append(
                f"- Comparison on {dataset}, five seeds, mean and 95 % interval: {row} "
                "([protocol](../results.md#seven-systems-on-one-core))."
            )
    for recipe, dataset in DATASETS.items():
        trials = read(f"knobs-{recipe}").get("trials", {}).get(name)
        if trials:
            values = ", ".join(f"{value}: {trial['knn']:.1%}" for value, trial in trials.items())
            parts.append(
                f"- Values that were tried on {dataset}, kNN on held-out training images: {values} "
                "([how](../pretraining.md#values-of-all-methods))."
            )
    return "\n".join(parts) or "None yet."


def read(name: str) -> dict[str, Any]:
    """Return a stored result, or an empty dictionary."""
    path = RESULTS / f"{name}.json"
    stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return stored


def compared(recipe: str, name: str) -> str:
    """Return the scores of a method in a stored comparison: of its first row, as the tables do."""
    rows = read(f"comparison-{recipe}/comparison").get("rows", [])
    row = next((row for row in rows if row["method"] == name), None)
    if row is None:
        return ""
    shown = {"kNN": "kNN", "linear-cached": "linear", "1 label": "1 label"}
    return ", ".join(
        f"{shown[score['score']]} {score['mean']:.1%} ± {(score['high'] - score['low']) / 2:.1%}"
        for score in row["scores"]
        if score["score"] in shown
    )


def code(name: str, method: type[Method]) -> str:
    """Return how to use a method, and its source."""
    source = inspect.getsource(method).rstrip()
    return (
        f"```sh\nsmi pretrain cifar10-small --method {name} --out runs/{name.lower()}\n"
        f"smi list methods {name}\n```\n\n"
        f'```python\nimport smi\n\nrun = smi.pretrain(data="~/photos", out="runs/mine", '
        f'method="{name}")\n```\n\n'
        f"Its class, [in the reference](../api/smi.methods.rst), is all there is of it but its "
        f"loss:\n\n```python\n{source}\n```"
    )
