"""Hold the numbers that the paper prints in its three tables; nothing here was measured by us.

The paper: "SMI: Efficient Self-Supervised Learning via Mutual-Information-Inspired Dependency
Optimization" (Mishra, Ballester, Karatzas 2026, arXiv:2606.08332). Accuracies are in per cent.
"""

from dataclasses import dataclass

SMI = "SMI"  # the two methods that the paper compares, as `smi list methods` spells them
BARLOW_TWINS = "BarlowTwins"


@dataclass(frozen=True)
class Table1Row:
    """Hold a linear classifier's accuracy: frozen ResNet-50, ImageNet's validation images."""

    name: str
    method: str  # as `smi list methods` spells it
    top1: float
    top5: float | None
    shared_network: bool
    multicrop: bool
    epochs: int


TABLE_1 = (
    Table1Row("NT-Xent (reproduced)", "SimCLR", 51.3, 76.9, True, False, 300),
    Table1Row("PIRL", "PIRL", 63.6, None, True, False, 800),
    Table1Row("SimCLR", "SimCLR", 69.3, 89.0, True, False, 1000),
    Table1Row("MoCo v2", "MoCoV2", 71.1, 90.1, False, False, 800),
    Table1Row("SimSiam", "SimSiam", 71.3, None, True, False, 800),
    Table1Row("SwAV", "SwAV", 71.8, None, True, False, 800),
    Table1Row("MoCo", "MoCo", 60.6, None, False, False, 200),
    Table1Row("SimCLR", "SimCLR", 67.0, 87.5, True, False, 300),
    Table1Row("Barlow Twins", "BarlowTwins", 71.4, 90.2, True, False, 300),
    Table1Row("BYOL", "BYOL", 72.5, 91.6, False, False, 300),
    Table1Row("DINO", "DINO", 72.5, 91.6, False, False, 300),
    Table1Row("SMI", "SMI", 71.41, 90.0, True, False, 300),
)


@dataclass(frozen=True)
class Table2Row:
    """Hold a loss's cost: 256 samples on each of 8 devices, 8192 coordinates."""

    loss: str  # as smi.paper.cost spells it
    gflops: float  # multiply-accumulates of the forward pass, truncated
    entries: str
    global_batch_norm: bool
    gather: bool
    epochs: int


TABLE_2 = (
    Table2Row("Barlow Twins", 137.43, "8192×8191", True, True, 1000),
    Table2Row("VICReg", 274.87, "2(8192×8191)", True, True, 1000),
    Table2Row("NT-Xent", 103.07, "3(4096×4095)", True, True, 1000),
    Table2Row("SMI", 12.88, "24(256×255)", False, False, 300),
)


@dataclass(frozen=True)
class Table3Row:
    """Hold top-1 of linear classifiers on frozen ResNet-50s, pretrained alike for 300 epochs."""

    name: str
    data: str  # as `smi data` spells it
    barlow_twins: float
    smi: float


TABLE_3 = (
    Table3Row("CIFAR-10", "cifar10", 89.90, 90.64),
    Table3Row("CIFAR-100", "cifar100", 65.24, 66.35),
    Table3Row("ImageNette", "imagenette", 87.77, 90.55),
    Table3Row("ImageWoof", "imagewoof", 68.92, 75.03),
)
