"""Train an encoder with SMILoss in a plain PyTorch loop: digits, no labels, forty lines."""

import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from torch.nn.functional import affine_grid, grid_sample

import smi


def view(x: Tensor) -> Tensor:
    """Shift, turn and stretch each image at random."""
    theta = torch.eye(2, 3) + 0.15 * torch.randn(len(x), 2, 3)
    return grid_sample(x, affine_grid(theta, list(x.shape), False), align_corners=False)


def accuracy() -> float:
    """Give 50 labels to a linear classifier, and ask it for 397 held-out digits."""
    h = encoder(x).detach()
    return LogisticRegression(max_iter=1000).fit(h[:50], y[:50]).score(h[1400:], y[1400:])


torch.manual_seed(0)
pixels, y = (torch.as_tensor(array) for array in load_digits(return_X_y=True))
x = pixels.float().reshape(-1, 1, 8, 8) / 8 - 1
layers = [nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU()]
encoder = nn.Sequential(*layers, nn.Flatten())  # to 2304 features
model = nn.Sequential(encoder, smi.nn.mlp(2304, 512, 512))
criterion = smi.SMILoss(redundancy_weight="auto")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
before = accuracy()
for _epoch in range(10):
    for batch in x[torch.randperm(1400)].split(140):
        loss = criterion(model(view(batch)), model(view(batch)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
after = accuracy()
print(f"accuracy with 50 labels: {before:.1%} before, {after:.1%} after")
