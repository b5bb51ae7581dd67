"""Runs that never trained: configurations, metrics and results written by hand."""

import json

import numpy as np
import yaml

from smi.evaluation.results import Result, Score, write
from smi.runs.run import Run

STEPS_PER_EPOCH, EVERY = 40, 10


def write_run(
    folder, method="SMI", *, data="digits", weight=0.01, epochs=3, seed=0, level=1.0, ratio=True
):
    """Logged numbers are drawn around `level` from the seed."""
    folder.mkdir(parents=True)
    config = {
        "data": {"source": data},
        "views": {"policy": "digits", "size": 8, "solarize_p": None},
        "encoder": {"name": "support.homemade.Net"},
        "method": {"name": method, **({"redundancy_weight": weight} if weight is not None else {})},
        "epochs": epochs,
        "batch_size": 32,
        "seed": seed,
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "run.json").write_text(
        json.dumps({"feature_dim": 64, "status": "finished", "policy": "digits"})
    )
    draws = np.random.default_rng(seed)
    lines = []
    for step in range(EVERY, epochs * STEPS_PER_EPOCH + 1, EVERY):
        norms = (level * draws.lognormal(size=EVERY)).tolist()
        terms = {
            "alignment": float(draws.uniform(1, 2)),
            "redundancy": float(level * draws.uniform(1, 2)),
        }
        lines.append(
            {
                "step": step,
                "epoch": step / STEPS_PER_EPOCH,
                "loss": sum(terms.values()),
                "terms": terms,
                "ratio": terms["redundancy"] / terms["alignment"] if ratio else None,
                "gradient_norm": sum(norms) / EVERY,
                "feature_std": float(0.05 * level * draws.uniform(0.9, 1)),
                "per_step": {"loss": [1.0] * EVERY, "gradient_norm": norms},
            }
        )
        lines.append({"step": step, "epoch": step / STEPS_PER_EPOCH, "probe": {"knn": 0.5}})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return Run(folder)


def write_result(
    run, top1, *, protocol="linear", data=None, epochs=4, images=100, step=None, top5=0.9
):
    step = run.metrics()[-1]["step"] if step is None else step
    details = (
        {"curves": [_epoch(epoch, top1) for epoch in range(1, epochs + 1)]}
        if protocol == "linear"
        else {}
    )
    asked = {
        "name": protocol,
        "data": data or run.config["data"]["source"],
        "train": {"images": images},
        "test": {"images": 50},
    }
    asked |= {"epochs": epochs} if protocol == "linear" else {}
    scores = (
        Score(protocol, top1),
        *([Score(f"{protocol} top-5", top5)] if top5 is not None else []),
    )
    write(
        run.folder,
        Result(
            asked, "encoder", {"digest": "d", "step": step}, scores, "a classifier", (), details, {}
        ),
    )


def _epoch(epoch, top1):
    return {
        "epoch": epoch,
        "train_loss": 1 / epoch,
        "train_top1": top1 / 2,
        "test_loss": 2 / epoch,
        "test_top1": top1 * epoch / 10,
    }
