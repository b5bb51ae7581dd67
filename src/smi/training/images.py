"""Open the images that a run trains on and the labelled images that its probes use."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from smi.config.schema import Config
from smi.data import Store, load
from smi.data.folders import Split
from smi.data.shard_store import ShardStore
from smi.data.sources import Source
from smi.data.subset import Subset
from smi.device import Precision, device_of
from smi.distributed import rank
from smi.errors import DiskError, UserError
from smi.evaluation import extract, extract_labelled, knn_accuracy
from smi.evaluation.label_free import label_free, sample
from smi.seeds import derive
from smi.views import Policy, Views


class Images:
    """Hold the training images, and labelled images for probes.

    pretrain: the images to train on.
    bank: labelled training images, the neighbours of a kNN probe; None without labels.
    held_out: images that the encoder is never trained on; None without probes.
    why_not: the reason why there are no probes.
    """

    def __init__(
        self,
        pretrain: Store,
        bank: Store | None,
        held_out: Store | None,
        *,
        opened: Sequence[Store] = (),
        why_not: str = "",
    ):
        self.pretrain = pretrain
        self.bank = bank
        self.held_out = held_out
        self.why_not = why_not
        self._opened = opened

    @classmethod
    def open(
        cls, config: Config, *, root: str | Path | None = None, num_workers: int | None = None
    ) -> "Images":
        """Open the stores of a configuration; probes are opened by rank 0 only."""
        data = config.data
        opened: list[Store] = []
        source = Source(data.source, Path(root) if root is not None else None)

        def read(split: Split, first: int | None = None) -> Store:
            store = load(
                source,
                split,
                resolution=data.resolution,
                keep=data.keep,
                num_workers=num_workers,
                max_cache_bytes=int(data.cache_gb * 1e9),
                first=first,
            )
            opened.append(store)
            return store

        pretrain = read("pretrain")
        probing = bool(config.log.probe_every) and rank() == 0
        if isinstance(pretrain, ShardStore):
            return cls._of_shards(config, pretrain, probing, opened, read)
        train = read("train") if probing or data.validation else None
        chosen, validation = _split(config, len(pretrain), train)
        used = pretrain if len(chosen) == len(pretrain) else Subset(pretrain, chosen.sort().values)
        if not probing:
            return cls(used, None, None, opened=opened, why_not="no probes requested")
        stores = _probe_stores(config, chosen, validation, train, read)
        if not isinstance(stores, str):
            return cls(used, *stores, opened=opened)
        if len(validation):
            limit = config.log.probe_images
            held_out = Subset(pretrain, validation[:limit].sort().values)
            return cls(used, None, held_out, opened=opened)
        return cls(used, None, None, opened=opened, why_not=stores)

    @classmethod
    def _of_shards(
        cls,
        config: Config,
        pretrain: ShardStore,
        probing: bool,
        opened: list[Store],
        read: Callable[[Split, int | None], Store],
    ) -> "Images":
        """Open images that come from shards: probes use the first shards of both splits."""
        data = config.data
        for name, value in (("data.images", data.images), ("data.validation", data.validation)):
            if value:
                raise UserError(
                    f"{name} chooses single images, and these shards are too large for a cache: "
                    "raise data.cache_gb, or name fewer shards"
                )
        why_not = "no probes requested"
        if probing:
            limit = config.log.probe_images
            try:
                bank, held_out = read("train", limit), read("val", limit)
            except DiskError:
                raise
            except UserError:
                why_not = "no shards to probe with"
            else:
                if bank.labels is not None and held_out.labels is not None:
                    return cls(pretrain, bank, held_out, opened=opened)
                why_not = "no labels to probe with"
        return cls(pretrain, None, None, opened=opened, why_not=why_not)

    def probe(
        self, policy: Policy, config: Config, precision: Precision = "float32"
    ) -> Callable[[nn.Module], dict[str, Any]] | None:
        """Return a function that measures an encoder on held-out images, if there are any.

        It measures kNN and what needs no labels; without labels, retrieval of views is the score.
        policy: the views, and the normalisation of the encoder's input. Features and neighbours are
        computed on the encoder's device.
        """
        if self.held_out is None:
            return None
        bank, held_out, views = self.bank, self.held_out, Views(policy)
        chosen = sample(held_out)
        sampled = Subset(held_out, chosen)
        settings: dict[str, Any] = {
            "mean": policy.mean,
            "std": policy.std,
            "size": config.views.whole_size,
            "precision": precision,
        }

        def without_labels(encoder: nn.Module, whole: Tensor) -> dict[str, Any]:
            criteria = label_free(
                encoder, sampled, views, whole, seed=config.seed, precision=precision
            )
            return {"label_free": asdict(criteria)}

        def retrieve(encoder: nn.Module) -> dict[str, Any]:
            measured = without_labels(encoder, extract(encoder, sampled, **settings))
            criteria = measured["label_free"]
            return {
                "retrieval": criteria["retrieval"],
                "images": criteria["num_images"],
                "split": "validation",
                "chance": 1 / criteria["num_images"],
            } | measured

        if bank is None:
            return retrieve

        def features(encoder: nn.Module, store: Store) -> tuple[Tensor, Tensor]:
            return extract_labelled(encoder, store, **settings)

        def measure(encoder: nn.Module) -> dict[str, Any]:
            queries, labels = features(encoder, held_out)
            num_classes = len(bank.classes) if bank.classes else None
            accuracy = knn_accuracy(
                *features(encoder, bank),
                queries,
                labels,
                num_classes=num_classes,
                device=device_of(encoder),
            )
            return {
                "knn": accuracy.top1,
                "k": accuracy.k,
                "temperature": accuracy.temperature,
                "bank": len(bank),
                "images": len(held_out),
                "split": "validation" if config.data.validation else "val",
                "chance": labels.bincount().max().item() / len(labels),
            } | without_labels(encoder, queries[chosen])

        return measure

    def close(self) -> None:
        """Close all stores."""
        for store in self._opened:
            store.close()


def _split(config: Config, count: int, train: Store | None) -> tuple[Tensor, Tensor]:
    """Draw the indices of the images to train on and of those held out for validation."""
    data = config.data
    chosen = _permutation(config.seed, "images", count)
    validation = chosen[:0]
    if data.validation:
        # Labelled images come first. Without labels any image can be held out.
        labelled = count if train is None or train.labels is None else len(train)
        num_validation = max(1, round(data.validation * labelled))
        validation = chosen[chosen < labelled][:num_validation]
        chosen = chosen[~torch.isin(chosen, validation)]
    if data.images is not None:
        if data.images > len(chosen):
            raise UserError(
                f"data.images is {data.images:,}, "
                f"and {data.source} has {len(chosen):,} images to train on"
            )
        chosen = chosen[: data.images]
    return chosen, validation


def _probe_stores(
    config: Config,
    chosen: Tensor,
    validation: Tensor,
    train: Store | None,
    read: Callable[[Split], Store],
) -> tuple[Store, Store] | str:
    """Return the bank and the held-out images of a probe, or the reason why there are none."""
    if train is None or train.labels is None:
        return "no labels to probe with"
    held_out = train
    indices = validation
    if not len(validation):
        try:
            held_out = read("val")
        except DiskError:
            raise
        except UserError:  # a folder of few images may hold out none
            return "no held-out images to probe with"
        indices = _permutation(config.seed, "probe", len(held_out))
    if held_out.labels is None:
        return "no labels to probe with"
    limit = config.log.probe_images
    bank = Subset(train, chosen[chosen < len(train)][:limit].sort().values)
    return bank, Subset(held_out, indices[:limit].sort().values)


def _permutation(seed: int, purpose: str, count: int) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(derive(seed, purpose)))
