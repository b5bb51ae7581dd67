"""Train with SMILoss in Lightning, on handwritten digits without labels.

pip install lightning
python examples/lightning_module.py

Lightning is not a dependency of smi. A loss of this package is a module like any other.
"""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import smi
from smi.nn import create_encoder, mlp
from smi.views import Views, policy

try:
    import lightning as L
except ModuleNotFoundError:  # its older distribution
    import pytorch_lightning as L


class Pretraining(L.LightningModule):
    """Make two views of each batch and compare them with SMI."""

    def __init__(self, lr: float = 1e-3):
        super().__init__()
        self.encoder = create_encoder("resnet-small", image_size=8)
        self.projector = mlp(self.encoder.dim, 512, 512)
        self.criterion = smi.SMILoss(redundancy_weight="auto")
        self.views = Views(policy("digits"))
        self.lr = lr

    def forward(self, x: Tensor) -> Tensor:
        """Return the features of images [N, 3, 8, 8]."""
        return self.encoder(x)

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        """Return the loss of a batch of uint8 images."""
        (images,) = batch
        generator = torch.Generator().manual_seed(self.global_step)
        z1, z2 = (self.projector(self(x)) for x in self.views(images, generator))
        loss = self.criterion(z1, z2)
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


def images() -> Tensor:
    """Return the digits as uint8 [1797, 3, 8, 8]."""
    grey = torch.as_tensor(load_digits().images * (255 / 16)).round().to(torch.uint8)
    return grey[:, None].expand(-1, 3, -1, -1).contiguous()


def main(epochs: int = 5, num_images: int = 1797) -> list[float]:
    """Train, and return the loss of the first and of the last epoch."""
    L.seed_everything(0, verbose=False)
    module = Pretraining()
    loader = DataLoader(
        TensorDataset(images()[:num_images]), batch_size=64, shuffle=True, drop_last=True
    )
    losses: list[float] = []

    class Record(L.Callback):
        """Keep the last loss of each epoch."""

        def on_train_epoch_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
            losses.append(float(trainer.callback_metrics["loss"]))

    trainer = L.Trainer(
        max_epochs=epochs,
        callbacks=[Record()],
        accelerator="auto",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, loader)
    nn.Module.eval(module.encoder)  # ready to be used, or saved with torch.save
    return [losses[0], losses[-1]]


if __name__ == "__main__":
    print("loss of the first epoch {:.2f}, of the last {:.2f}".format(*main()))
