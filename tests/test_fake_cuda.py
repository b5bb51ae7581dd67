"""Run views, methods, metrics and feature extraction on a fake GPU.

A tensor on the wrong device or a host sync fails these tests.
"""

from dataclasses import fields, replace

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from smi.data import Batch, Store
from smi.data.pictures import Pictures
from smi.device import autocast
from smi.evaluation import batches_of_features
from smi.methods import METHOD_NAMES, create_method
from smi.nn import create_encoder
from smi.optim import clip_gradients, create_optimizer
from smi.training.metrics import representation_metrics
from smi.training.step import gradient_norm
from smi.views import Views, policy
from smi.views.pixels import follow_plan, make_plans
from support.fake_cuda import CUDA, BlockingCopyError, empty, fake_cuda, on_fake_cuda

N = 16


def test_mistakes_are_noticed():
    with fake_cuda():
        x = empty(4)
        with pytest.raises(DataDependentOutputException):
            x.sum().item()
        with pytest.raises(DataDependentOutputException):
            x.tolist()
        with pytest.raises(DynamicOutputShapeException):
            x[x > 0]
        with pytest.raises(BlockingCopyError):
            x.cpu()
        with pytest.raises(BlockingCopyError):
            torch.ones(4).to(CUDA)
        with pytest.raises(BlockingCopyError):
            x.copy_(torch.ones(4))
        with pytest.raises(BlockingCopyError):
            torch.tensor([1.0, 2.0], device=CUDA)
        with pytest.raises(RuntimeError, match="device"):
            x + torch.ones(4)
        torch.ones(4).to(CUDA, non_blocking=True)


@pytest.mark.parametrize("name", METHOD_NAMES)
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_a_step_of_every_method(name, precision):
    method = create_method(name, create_encoder("resnet-small", image_size=32), num_images=500)
    views = method.policy(policy("cifar10")).views
    with fake_cuda():
        on_fake_cuda(method)
        x = [empty(N, 3, v.size, v.size) for v in views for _ in range(v.grid**2)]
        images = empty(N, 3, 32, 32, dtype=torch.uint8)
        batch = Batch(images, empty(N, dtype=torch.long), seed=3)
        with autocast(CUDA, precision):
            out = method(x, batch)
        assert out.loss.device == CUDA
        assert out.loss.dtype == torch.float32
        method.before_step()
        method.after_step()
        metrics = representation_metrics(out.h, out.z1, out.z2)
        assert all(value.device == CUDA for value in metrics.values())


@pytest.mark.parametrize("name", ["cifar10", "imagenet", "imagenette-multicrop", "pirl-jigsaw"])
def test_views_of_every_kind(name):
    views = Views(policy(name, size=32), compiled=False)
    images = Pictures.join([torch.zeros(3, 40, 50 + i, dtype=torch.uint8) for i in range(N)])
    drawn = views.draw(images, torch.Generator().manual_seed(0))
    plans = make_plans(drawn, views.policy.mean, views.policy.std, torch.device("cpu"))
    with fake_cuda():
        for plan in plans:
            tensors = {
                field.name: empty(*value.shape, dtype=value.dtype)
                for field in fields(plan)
                if isinstance(value := getattr(plan, field.name), torch.Tensor)
            }
            x = follow_plan(empty(N, 3, 40, 65, dtype=torch.uint8), replace(plan, **tensors))
            assert x.device == CUDA
            assert x.shape == (N, 3, plan.size, plan.size)


def test_uploaded_views_are_normalised():
    views = Views(policy("cifar10"))
    with fake_cuda():
        x1, _ = views.normalise([empty(N, 3, 32, 32, dtype=torch.uint8) for _ in range(2)])
        assert x1.device == CUDA
        assert x1.dtype == torch.float32


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_features(precision):
    class FakeStore(Store):
        name, split, resolution, labels, classes, bad = "fake", "val", 40, None, None, []

        def __len__(self):
            return 3 * N

        def start(self, index):
            return lambda: (torch.empty(len(index), 3, 40, 40, dtype=torch.uint8), index)

        start_squares = start

    encoder = create_encoder("resnet-small", image_size=32)
    with fake_cuda():
        on_fake_cuda(encoder)
        batches = batches_of_features(
            encoder,
            FakeStore(),
            mean=(0.5,) * 3,
            std=(0.2,) * 3,
            size=32,
            batch_size=N,
            precision=precision,
        )
        for h, index in batches:
            assert h.device == CUDA
            assert index.device.type == "cpu"


@pytest.mark.parametrize("name", ["AdamW", "LARS", "LARC", "SGD"])
def test_a_step_of_every_optimizer(name):
    module = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
    with fake_cuda():
        on_fake_cuda(module)
        optimizer = create_optimizer(module, name=name, lr=0.1, lr_vectors=0.01, weight_decay=0.1)
        for p in module.parameters():
            p.grad = torch.empty_like(p)
        norm = gradient_norm(list(module.parameters()))
        clip_gradients(module.parameters(), 3.0)
        optimizer.step()
        assert norm.device == CUDA
