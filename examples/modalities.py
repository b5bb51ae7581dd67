"""Train two encoders for two kinds of input with one loss, on halves of handwritten digits.

python examples/modalities.py

One encoder sees the left half of a digit, the other the right half. Training uses no labels.
Then two questions are asked about held-out digits. Which right half belongs to a left half,
according to their projections? Which digit is it, according to a linear classifier of the features
of the left half that was trained with a hundred labels?
"""

import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

from smi.losses.numerics import unit_rows
from smi.methods import Modalities
from smi.nn import Encoder

NUM_TRAIN = 1397  # of 1797 images; the rest is held out
BATCH_SIZE = 127  # eleven batches per epoch
NUM_EPOCHS = 30


def halves() -> tuple[Tensor, Tensor, Tensor]:
    """Load left halves [1797, 32], right halves [1797, 32] and digits, in random order."""
    digits = load_digits()
    order = torch.randperm(len(digits.images), generator=torch.Generator().manual_seed(0))
    images = torch.as_tensor(digits.images, dtype=torch.float32)[order] / 8 - 1  # [1797, 8, 8]
    return (
        images[:, :, :4].flatten(1),
        images[:, :, 4:].flatten(1),
        torch.as_tensor(digits.target)[order],
    )


def encoder() -> Encoder:
    """Create an encoder of half a digit."""
    return Encoder(
        nn.Sequential(nn.Linear(32, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 64)), 64
    )


def train(model: Modalities, left: Tensor, right: Tensor) -> None:
    """Train without labels."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-4)
    generator = torch.Generator().manual_seed(0)
    for _ in range(NUM_EPOCHS):
        for index in torch.randperm(len(left), generator=generator).split(BATCH_SIZE):
            model(left[index], right[index]).loss.backward()
            optimizer.step()
            optimizer.zero_grad()


@torch.no_grad()
def evaluate(model: Modalities, left: Tensor, right: Tensor, digit: Tensor) -> dict[str, float]:
    """Return the shares of held-out images for which each answer is right."""
    model.eval()
    h_left, h_right = model.encode(left, right)
    z_left, z_right = (
        unit_rows(z - z.mean(dim=1, keepdim=True))[NUM_TRAIN:]
        for z in model.project(h_left, h_right)
    )
    dependency = (z_left @ z_right.T).abs()  # SMI does not distinguish the sign of a correlation
    # The rank of the true half: the number of halves with a larger dependency.
    rank = (dependency > dependency.diagonal()[:, None]).sum(dim=1)
    model.train()
    return {
        "right half ranked first": (rank < 1).double().mean().item(),
        "right half among first five": (rank < 5).double().mean().item(),
        "digit": few_labels(h_left, digit),
    }


def few_labels(h: Tensor, digit: Tensor) -> float:
    """Return the mean accuracy of five classifiers, each with its own hundred labels."""
    h = (h - h[:NUM_TRAIN].mean(dim=0)) / h[:NUM_TRAIN].std(dim=0)
    features, labels = h.numpy(), digit.numpy()
    scores = []
    for start in range(0, 500, 100):
        classifier = LogisticRegression(max_iter=500).fit(
            features[start : start + 100], labels[start : start + 100]
        )
        scores.append(classifier.score(features[NUM_TRAIN:], labels[NUM_TRAIN:]))
    return float(sum(scores) / len(scores))


def main() -> tuple[dict[str, float], dict[str, float]]:
    """Train, and print the answers before and after."""
    torch.set_num_threads(1)  # the network is too small to gain from more
    torch.manual_seed(0)
    left, right, digit = halves()
    model = Modalities(encoder(), encoder(), widths=(256, 256))
    before = evaluate(model, left, right, digit)
    train(model, left[:NUM_TRAIN], right[:NUM_TRAIN])
    after = evaluate(model, left, right, digit)
    print(f"Share of right answers for {len(left) - NUM_TRAIN} held-out left halves\n")
    print(f"{'':28}{'untrained':>10}{'trained':>10}")
    for name in before:
        print(f"{name:28}{before[name]:10.1%}{after[name]:10.1%}")
    return before, after


if __name__ == "__main__":
    main()
