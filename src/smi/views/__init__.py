"""Batched random views on any device, and the recipes' policies for them.

views = Views(policy("cifar10"))
x1, x2 = views(batch.images, batch.generator())    # uint8 [N, 3, H, W] to normalised float32 [N, 3, S, S]
"""

from smi.views.policies import RECIPES, Policy, View, jigsaw, multicrop, policy
from smi.views.views import Views

__all__ = ["RECIPES", "Policy", "View", "Views", "jigsaw", "multicrop", "policy"]
