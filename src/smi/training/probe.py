"""Which images a run trains on, and which its probes look at."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from smi.config.schema import Config
from smi.data import Store, load
from smi.data.folders import Split
from smi.data.subset import Subset
from smi.distributed import rank
from smi.errors import UserError
from smi.evaluation import extract_labelled, knn_accuracy
from smi.seeds import derive
from smi.views import Policy


class Images:
    """What is trained on, and what probes look at: labelled images of the training set, and held-out ones the encoder never sees."""

    def __init__(
        self,
        pretrain: Store,
        bank: Store | None,
        held_out: Store | None,
        *,
        opened: Sequence[Store] = (),
        why_not: str = "",
    ):
        self.pretrain, self.bank, self.held_out = pretrain, bank, held_out
        self._opened, self.why_not = opened, why_not

    @classmethod
    def open(
        cls, config: Config, *, root: str | Path | None = None, num_workers: int | None = None
    ) -> "Images":
        data = config.data
        opened: list[Store] = []

        def read(split: Split) -> Store:
            opened.append(
                load(
                    data.source,
                    split,
                    resolution=data.resolution,
                    root=root,
                    num_workers=num_workers,
                )
            )
            return opened[-1]

        pretrain = read("pretrain")
        chosen = torch.randperm(
            len(pretrain), generator=torch.Generator().manual_seed(derive(config.seed, "images"))
        )
        probing = bool(config.log.probe_every) and rank() == 0
        train = read("train") if probing or data.validation else None
        apart = chosen[:0]
        if data.validation:
            if train is None or train.labels is None:
                raise UserError(
                    f"data.validation keeps labelled images apart, and {data.source} has no labels"
                )
            apart = chosen[chosen < len(train)][: max(1, round(data.validation * len(train)))]
            chosen = chosen[~torch.isin(chosen, apart)]
        if data.images is not None:
            if data.images > len(chosen):
                raise UserError(
                    f"data.images asks for {data.images:,} images, and {data.source} has {len(chosen):,} to train on"
                )
            chosen = chosen[: data.images]
        used = pretrain if len(chosen) == len(pretrain) else Subset(pretrain, chosen.sort().values)
        if not probing:
            return cls(used, None, None, opened=opened, why_not="no probes asked for")
        if train is None or train.labels is None:
            return cls(used, None, None, opened=opened, why_not="no labels to probe with")
        held_out, some = train, apart
        if not len(apart):
            try:
                held_out = read("val")
            except UserError:  # a folder of few images may hold out none
                return cls(
                    used, None, None, opened=opened, why_not="no held-out images to probe with"
                )
            some = torch.randperm(
                len(held_out), generator=torch.Generator().manual_seed(derive(config.seed, "probe"))
            )
        if held_out.labels is None:
            return cls(used, None, None, opened=opened, why_not="no labels to probe with")
        bank = Subset(train, chosen[chosen < len(train)][: config.log.probe_images].sort().values)
        return cls(
            used,
            bank,
            Subset(held_out, some[: config.log.probe_images].sort().values),
            opened=opened,
        )

    def probe(self, seen: Policy, config: Config) -> Callable[[nn.Module], dict[str, Any]] | None:
        """Weighted kNN of held-out images among labelled training images; None without labels."""
        if self.bank is None or self.held_out is None:
            return None
        bank, held_out = self.bank, self.held_out

        def look(encoder: nn.Module) -> dict[str, Any]:
            def features(store: Store) -> tuple[Tensor, Tensor]:
                return extract_labelled(
                    encoder, store, mean=seen.mean, std=seen.std, size=config.views.size
                )

            queries, labels = features(held_out)
            found = knn_accuracy(
                *features(bank),
                queries,
                labels,
                num_classes=len(bank.classes) if bank.classes else None,
            )
            return {
                "knn": found.top1,
                "k": found.k,
                "temperature": found.temperature,
                "bank": len(bank),
                "images": len(held_out),
                "split": "validation" if config.data.validation else "val",
                "chance": labels.bincount().max().item() / len(labels),
            }

        return look

    def close(self) -> None:
        for store in self._opened:
            store.close()
