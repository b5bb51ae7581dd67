"""Write runs that never trained: configurations, metrics and results made by hand."""

import json

import numpy as np
import yaml

from smi.evaluation.results import Result, Score, write
from smi.runs.run import Run

STEPS_PER_EPOCH = 40
LEAST_CONFIG = {  # what readers of a run need
    "data": {"source": "digits"},
    "views": {"policy": "digits", "size": 8},
    "encoder": {"name": "resnet-small"},
    "method": {"name": "SMI"},
    "epochs": 1,
    "batch_size": 32,
    "seed": 0,
}
LOG_INTERVAL = 10  # steps


def write_run(
    folder,
    method="SMI",
    *,
    data="digits",
    weight=0.01,
    epochs=3,
    seed=0,
    level=1.0,
    ratio=True,
    published=None,
):
    """Write a finished run whose logged numbers are drawn around `level` from the seed."""
    folder.mkdir(parents=True)
    settings = {} if weight is None else {"redundancy_weight": weight}
    config = {
        "data": {"source": data},
        "views": {"policy": "digits", "size": 8, "solarize_p": None},
        "encoder": {"name": "support.homemade.Net"},
        "method": {"name": method, **settings},
        "epochs": epochs,
        "batch_size": 32,
        "seed": seed,
    }
    if published is not None:  # earlier versions do not write it
        config["published"] = published
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    about = {"feature_dim": 64, "status": "finished", "policy": "digits"}
    (folder / "run.json").write_text(json.dumps(about))
    draws = np.random.default_rng(seed)
    lines = []
    for step in range(LOG_INTERVAL, epochs * STEPS_PER_EPOCH + 1, LOG_INTERVAL):
        lines.append(_metrics(draws, step, level, ratio))
        lines.append({"step": step, "epoch": step / STEPS_PER_EPOCH, "probe": {"knn": 0.5}})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return Run(folder)


def _metrics(draws, step, level, ratio):
    norms = (level * draws.lognormal(size=LOG_INTERVAL)).tolist()
    terms = {
        "alignment": float(draws.uniform(1, 2)),
        "redundancy": float(level * draws.uniform(1, 2)),
    }
    return {
        "step": step,
        "epoch": step / STEPS_PER_EPOCH,
        "loss": sum(terms.values()),
        "terms": terms,
        "ratio": terms["redundancy"] / terms["alignment"] if ratio else None,
        "gradient_norm": sum(norms) / LOG_INTERVAL,
        "feature_std": float(0.05 * level * draws.uniform(0.9, 1)),
        "per_step": {"loss": [1.0] * LOG_INTERVAL, "gradient_norm": norms},
    }


def write_result(
    run, top1, *, protocol="linear", data=None, epochs=4, images=100, step=None, top5=0.9
):
    """Write the result of a linear evaluation into a run's folder."""
    step = run.metrics()[-1]["step"] if step is None else step
    settings = {
        "name": protocol,
        "data": data or run.config["data"]["source"],
        "train": {"images": images},
        "test": {"images": 50},
    }
    details = {}
    if protocol == "linear":
        settings["epochs"] = epochs
        details = {"curves": [_epoch(epoch, top1) for epoch in range(1, epochs + 1)]}
    scores = [Score(protocol, top1)]
    if top5 is not None:
        scores.append(Score(f"{protocol} top-5", top5))
    encoder = {"digest": "d", "step": step}
    result = Result(settings, "encoder", encoder, tuple(scores), "a classifier", (), details, {})
    write(run.folder, result)


def _epoch(epoch, top1):
    return {
        "epoch": epoch,
        "train_loss": 1 / epoch,
        "train_top1": top1 / 2,
        "test_loss": 2 / epoch,
        "test_top1": top1 * epoch / 10,
    }
