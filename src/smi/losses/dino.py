"""Compute DINO's centred distillation loss (Caron et al. 2021, arXiv:2104.14294).

N samples on this device, D output coordinates.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from smi.losses.numerics import (
    bounded,
    check_embeddings,
    check_lists,
    check_positive,
    float32_island,
)
from smi.losses.terms import Terms

STUDENT_TEMPERATURE = 0.1
TEACHER_TEMPERATURE = 0.04  # at the start of training; the method raises it


class DINOLoss(nn.Module):
    """Wrap `dino_loss`: `DINOLoss()(teacher, student, center)` is the scalar to minimise."""

    def __init__(
        self,
        student_temperature: float = STUDENT_TEMPERATURE,
        teacher_temperature: float = TEACHER_TEMPERATURE,
    ):
        super().__init__()
        self.student_temperature = student_temperature
        self.teacher_temperature = teacher_temperature

    def forward(
        self, teacher: Sequence[Tensor], student: Sequence[Tensor], center: Tensor
    ) -> Tensor:
        """Return the scalar to minimise."""
        return dino_loss(
            teacher,
            student,
            center,
            student_temperature=self.student_temperature,
            teacher_temperature=self.teacher_temperature,
        ).total


def dino_loss(
    teacher: Sequence[Tensor],
    student: Sequence[Tensor],
    center: Tensor,
    *,
    student_temperature: float = STUDENT_TEMPERATURE,
    teacher_temperature: float | Tensor = TEACHER_TEMPERATURE,
) -> Terms:
    """Match the student's distribution on each view to the teacher's on every other view.

    The teacher's distribution is centred and sharpened.

    teacher, student: outputs [N, D] per view, in the same order of views; the teacher usually has
    only the first, large ones. The teacher gets no gradient.
    center: [D], the mean of the teacher's outputs: `smi.nn.Center` keeps it.
    teacher_temperature: a tensor is not checked, which would wait for its device.

    W devices: the mean of W local losses, which is the loss of the joined batch if `center` is the
    same on every device.

    Outputs divided by a temperature are bounded by 1e30. Fewer than two views, different shapes or
    devices, integers and temperatures that are not positive raise a ValueError. The loss is
    computed in float32, or in float64 if an input is, also under autocast.
    """
    check_positive(student_temperature=student_temperature)
    if not isinstance(teacher_temperature, Tensor):
        check_positive(teacher_temperature=teacher_temperature)
    check_lists(teacher, student)
    if not teacher or not student or len(teacher) + len(student) < 3:
        raise ValueError(
            "DINO needs a view for the teacher and another for the student; "
            f"got {len(teacher)} and {len(student)}."
        )
    check_embeddings(*teacher, *student)
    if center.shape[-1:].numel() != center.numel():
        raise ValueError(
            f"The center must be one row of coordinates; got shape {tuple(center.shape)}."
        )
    with float32_island(*teacher, *student, center.reshape(1, -1), same_shape=False) as tensors:
        *outputs, center = tensors
        targets = [
            torch.softmax(bounded((t.detach() - center) / teacher_temperature), dim=1)
            for t in outputs[: len(teacher)]
        ]
        predictions = [
            torch.log_softmax(bounded(s / student_temperature), dim=1)
            for s in outputs[len(teacher) :]
        ]
        pairs = [(t, p) for i, t in enumerate(targets) for j, p in enumerate(predictions) if i != j]
        return Terms(alignment=-torch.stack([(t * p).sum(dim=1).mean() for t, p in pairs]).mean())
