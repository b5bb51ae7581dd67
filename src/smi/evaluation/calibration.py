"""Calibrate the probabilities of a classifier by one temperature (Guo et al. 2017).

temperature = fit_temperature(scores, labels)     # of images that the classifier was not fitted on
probabilities = (scores / temperature).softmax(1)

The order of the classes stays the same, and so does the accuracy. n rows, C classes.
"""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

MAX_TEMPERATURE = 50.0  # and its inverse is the smallest one
NUM_BISECTIONS = 40


def log_loss(scores: Tensor, labels: Tensor, temperature: float = 1.0) -> float:
    """Return the mean of -log(probability of the right class)."""
    return cross_entropy(scores.cpu().double() / temperature, labels.cpu()).item()


def fit_temperature(scores: Tensor, labels: Tensor) -> float:
    """Return the temperature that lowers the log loss of scores [n, C] most; 1 if none does.

    One more row counts whose label is uniform over the classes: without it, few rows that are all
    correct would make every later prediction certain.
    """
    z = scores.cpu().double()
    z = z - z.max(1, keepdim=True).values
    own = z.gather(1, labels.cpu()[:, None]).mean()
    target = (len(z) * own + z.mean()) / (len(z) + 1)

    def slope(inverse: float) -> float:
        """Return the derivative of the loss by the inverse temperature; it never falls."""
        expected = ((z * inverse).softmax(1) * z).sum(1).mean()
        return (expected - target).item()

    low, high = 1 / MAX_TEMPERATURE, MAX_TEMPERATURE
    for _ in range(NUM_BISECTIONS):
        middle = (low * high) ** 0.5
        if slope(middle) > 0:
            high = middle
        else:
            low = middle
    temperature = float(torch.tensor(1 / middle))  # float32, as the network computes
    return temperature if log_loss(scores, labels, temperature) < log_loss(scores, labels) else 1.0
