"""Two inputs of different kinds, one loss: the left and the right half of handwritten digits, each with an encoder of its own.

python examples/modalities.py

Training sees no label. Afterwards, of halves that were held out: which right one belongs to this left one, by their projections; and which
digit the left one is, by a linear classifier of its features that was given a hundred labels.
"""

import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

from smi.losses.embeddings import unit_rows
from smi.methods import Modalities
from smi.nn import Encoder

NUM_TRAINED, BATCH, EPOCHS = 1397, 127, 30  # of 1797 images; eleven batches to an epoch


def halves() -> tuple[Tensor, Tensor, Tensor]:
    """Left [1797, 32], right [1797, 32] and the digit, in random order."""
    digits = load_digits()
    order = torch.randperm(len(digits.images), generator=torch.Generator().manual_seed(0))
    images = torch.as_tensor(digits.images, dtype=torch.float32)[order] / 8 - 1  # [1797, 8, 8]
    return (
        images[:, :, :4].flatten(1),
        images[:, :, 4:].flatten(1),
        torch.as_tensor(digits.target)[order],
    )


def encoder() -> Encoder:
    return Encoder(
        nn.Sequential(nn.Linear(32, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 64)), 64
    )


def train(model: Modalities, left: Tensor, right: Tensor) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-4)
    generator = torch.Generator().manual_seed(0)
    for _ in range(EPOCHS):
        for index in torch.randperm(len(left), generator=generator).split(BATCH):
            model(left[index], right[index]).loss.backward()
            optimizer.step()
            optimizer.zero_grad()


@torch.no_grad()
def evaluate(model: Modalities, left: Tensor, right: Tensor, digit: Tensor) -> dict[str, float]:
    """Shares of held-out images, by a model that saw the first NUM_TRAINED at most."""
    model.eval()
    h_left, h_right = model.encode(left, right)
    z_left, z_right = (
        unit_rows(z - z.mean(dim=1, keepdim=True))[NUM_TRAINED:]
        for z in model.project(h_left, h_right)
    )
    dependency = (z_left @ z_right.T).abs()  # SMI takes a correlation and its negative for the same
    rank = (dependency > dependency.diagonal()[:, None]).sum(
        dim=1
    )  # of the true half: how many are before it
    model.train()
    return {
        "its right half, first": (rank < 1).double().mean().item(),
        "its right half, among five": (rank < 5).double().mean().item(),
        "its digit": few_labels(h_left, digit),
    }


def few_labels(h: Tensor, digit: Tensor) -> float:
    """The mean of five classifiers, each with a hundred labels of its own."""
    h = (h - h[:NUM_TRAINED].mean(dim=0)) / h[:NUM_TRAINED].std(dim=0)
    features, labels = h.numpy(), digit.numpy()
    scores = []
    for start in range(0, 500, 100):
        classifier = LogisticRegression(max_iter=500).fit(
            features[start : start + 100], labels[start : start + 100]
        )
        scores.append(classifier.score(features[NUM_TRAINED:], labels[NUM_TRAINED:]))
    return float(sum(scores) / len(scores))


def main() -> tuple[dict[str, float], dict[str, float]]:
    torch.set_num_threads(
        1
    )  # so small a network gains nothing by more, and loses where others compute too
    torch.manual_seed(0)
    left, right, digit = halves()
    model = Modalities(encoder(), encoder(), widths=(256, 256))
    before = evaluate(model, left, right, digit)
    train(model, left[:NUM_TRAINED], right[:NUM_TRAINED])
    after = evaluate(model, left, right, digit)
    print(f"Left halves of {len(left) - NUM_TRAINED} held-out digits: share found\n")
    print(f"{'':28}{'untrained':>10}{'trained':>10}")
    for name in before:
        print(f"{name:28}{before[name]:10.1%}{after[name]:10.1%}")
    return before, after


if __name__ == "__main__":
    main()
