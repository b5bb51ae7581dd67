"""Make random views of batches on any device, by the policies of the recipes.

views = Views(policy("cifar10"))
x1, x2 = views(batch.images, batch.generator())    # normalised float32 [N, 3, S, S]
"""

from smi.views.policies import RECIPES, Policy, View, jigsaw, multicrop, policy
from smi.views.views import Views

__all__ = ["RECIPES", "Policy", "View", "Views", "jigsaw", "multicrop", "policy"]
