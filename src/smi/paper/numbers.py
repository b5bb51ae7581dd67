"""Numbers that the paper prints, and nothing that was measured here.

From "SMI: Efficient Self-Supervised Learning via Mutual-Information-Inspired Dependency Optimization" (Mishra, Ballester, Karatzas 2026):
its three tables. Accuracies are in per cent.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Accuracy:
    """A row of Table 1: a linear classifier on a frozen ResNet-50, ImageNet's validation images."""

    name: str
    method: str  # as `smi methods` spells it
    top1: float
    top5: float | None
    shared_network: bool
    multicrop: bool
    epochs: int


TABLE_1 = (
    Accuracy("NT-Xent (reproduced)", "SimCLR", 51.3, 76.9, True, False, 300),
    Accuracy("PIRL", "PIRL", 63.6, None, True, False, 800),
    Accuracy("SimCLR", "SimCLR", 69.3, 89.0, True, False, 1000),
    Accuracy("MoCo v2", "MoCoV2", 71.1, 90.1, False, False, 800),
    Accuracy("SimSiam", "SimSiam", 71.3, None, True, False, 800),
    Accuracy("SwAV", "SwAV", 71.8, None, True, False, 800),
    Accuracy("MoCo", "MoCo", 60.6, None, False, False, 200),
    Accuracy("SimCLR", "SimCLR", 67.0, 87.5, True, False, 300),
    Accuracy("Barlow Twins", "BarlowTwins", 71.4, 90.2, True, False, 300),
    Accuracy("BYOL", "BYOL", 72.5, 91.6, False, False, 300),
    Accuracy("DINO", "DINO", 72.5, 91.6, False, False, 300),
    Accuracy("SMI", "SMI", 71.41, 90.0, True, False, 300),
)


@dataclass(frozen=True)
class Cost:
    """A row of Table 2: 256 samples on each of 8 devices, 8192 coordinates."""

    loss: str  # as smi.paper.cost spells it
    gflops: float  # multiply-accumulates of the forward pass, truncated
    entries: str
    global_batch_norm: bool
    gather: bool
    epochs: int


TABLE_2 = (
    Cost("Barlow Twins", 137.43, "8192×8191", True, True, 1000),
    Cost("VICReg", 274.87, "2(8192×8191)", True, True, 1000),
    Cost("NT-Xent", 103.07, "3(4096×4095)", True, True, 1000),
    Cost("SMI", 12.88, "24(256×255)", False, False, 300),
)


@dataclass(frozen=True)
class Pair:
    """A row of Table 3: top-1 of a linear classifier on a frozen ResNet-50, pretrained for 300 epochs under identical settings."""

    name: str
    data: str  # as `smi data` spells it
    barlow_twins: float
    smi: float


TABLE_3 = (
    Pair("CIFAR-10", "cifar10", 89.90, 90.64),
    Pair("CIFAR-100", "cifar100", 65.24, 66.35),
    Pair("ImageNette", "imagenette", 87.77, 90.55),
    Pair("ImageWoof", "imagewoof", 68.92, 75.03),
)
