"""One training step: parts of a batch, float16, clipping, checkpointed activations."""

import copy
import functools
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from smi.errors import TrainingError, UserError
from smi.losses.numerics import unit_rows
from smi.methods import SMI, Method, SimCLR
from smi.nn import Encoder, Prototypes, create_encoder
from smi.nn.encoders import checkpoint_activations
from smi.optim import create_optimizer
from smi.seeds import derive
from smi.training.metrics import representation_metrics
from smi.training.step import Step, check_parts, clip_gradients, create_scaler, is_out_of_memory
from support.tiny import NAMES, batch, make, views, without_batch_norm
from support.two_processes import join_and_work, work_together

CPU = torch.device("cpu")
N = 12


def job(
    method: Method,
    *,
    accumulate: int = 1,
    optimizer: str = "SGD",
    precision: str = "float32",
    clip: float | None = None,
    recompute: bool = False,
    compiled: bool = False,
) -> SimpleNamespace:
    """Return the parts of a job that a step uses."""
    return SimpleNamespace(
        method=method,
        optimizer=create_optimizer(
            method, name=optimizer, lr=0.1, lr_vectors=None, weight_decay=0.0
        ),
        scaler=create_scaler(precision, CPU),
        device=CPU,
        precision=precision,
        compiled=compiled,
        processes_agree=lambda done: True,
        config=SimpleNamespace(
            seed=0,
            accumulate=accumulate,
            average_every=1,
            checkpoint_activations=recompute,
            optimizer=SimpleNamespace(clip=clip),
        ),
    )


def prepare(name: str, *, batch_norm: bool = False) -> Method:
    method = make(name).double()
    method.epoch, method.progress = 1, 0.5  # SwAV's queue is in use
    return method if batch_norm else without_batch_norm(method)


def double(method: Method, n: int = N, seed: int = 1) -> list[torch.Tensor]:
    return [x.double() for x in views(method, n, seed)]


def copied(method: Method) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in method.state_dict().items()}


# ------------------------------------------------------------------------------ parts of a batch


@pytest.mark.parametrize("parts", [2, 3])
@pytest.mark.parametrize("name", [name for name in NAMES if name != "SMI"])
def test_parts_of_one_loss_equal_the_whole_batch(name, parts):
    results = []
    for accumulate in (1, parts):
        method = prepare(name)
        take = Step(job(method, accumulate=accumulate))
        taken = [take(i, double(method, seed=i + 1), batch(N, i + 1)) for i in range(2)]
        results.append((copied(method), [one.gradient_norm for one in taken], taken[-1].out))
    (state, norms, out), (other_state, other_norms, other_out) = results
    assert any(
        not torch.equal(state[key], value) for key, value in prepare(name).state_dict().items()
    )
    torch.testing.assert_close(other_state, state)
    torch.testing.assert_close(other_norms, norms)
    torch.testing.assert_close(dict(other_out.terms), dict(out.terms))
    torch.testing.assert_close((other_out.h, other_out.z1, other_out.z2), (out.h, out.z1, out.z2))
    assert len(other_out.h) == N


def test_parts_of_smi_are_devices():
    """The gradient is the mean of the parts' own gradients, as DDP averages them."""
    method = prepare("SMI", batch_norm=True)
    x, given = double(method), batch(N)
    gradients, losses = [], []
    for i in range(3):
        alone = copy.deepcopy(method)
        out = alone([view.chunk(3)[i] for view in x], given)
        out.loss.backward()
        gradients.append([p.grad for p in alone.parameters()])
        losses.append(out.loss)
    mean = [torch.stack(parts).mean(dim=0) for parts in zip(*gradients, strict=True)]
    before = [p.detach().clone() for p in method.parameters()]
    taken = Step(job(method, accumulate=3))(0, x, given)
    for was, now, gradient in zip(before, method.parameters(), mean, strict=True):
        torch.testing.assert_close(was - now.detach(), 0.1 * gradient)
    torch.testing.assert_close(taken.out.loss, torch.stack(losses).mean().detach())
    assert len(taken.out.z1) == N


@pytest.mark.parametrize("name", ["SMI", "BarlowTwins", "BYOL", "DINO"])
def test_running_statistics_see_each_part_once(name):
    method = prepare(name, batch_norm=True)
    expected = copy.deepcopy(method)
    x = double(method)
    for i in range(2):
        part = [view.chunk(2)[i] for view in x]
        expected.embed(part)
        expected.targets(part)
    Step(job(method, accumulate=2))(0, x, batch(N))
    states = method.state_dict(), expected.state_dict()
    names = [key for key in states[0] if "running_" in key or "num_batches" in key]
    assert names
    for key in names:
        torch.testing.assert_close(states[0][key], states[1][key], msg=key)


class Dropping(nn.Module):
    """Drop features at random; remember them."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(192, 10)
        self.seen: list[torch.Tensor] = []

    def forward(self, x):
        h = nn.functional.dropout(self.layer(x.flatten(1)), 0.5)
        self.seen.append(h.detach())
        return h


def test_the_second_pass_draws_the_random_numbers_of_the_first():
    torch.manual_seed(0)
    network = Dropping()
    method = SimCLR(Encoder(network, 10), widths=(12, 6))
    Step(job(method, accumulate=2))(5, views(method, N), batch(N))
    assert len(network.seen) == 8  # two views of two parts, twice
    for first, second in zip(network.seen[:4], network.seen[4:], strict=True):
        assert torch.equal(first, second)
    assert not torch.equal(network.seen[0] == 0, network.seen[2] == 0)


def test_dropout_does_not_change_with_the_setting():
    """A whole batch keeps the draws of (seed, step, rank)."""
    network = Dropping()
    method = SMI(Encoder(network, 10), widths=(12, 6))
    x = views(method, N)
    Step(job(method))(5, x, batch(N))
    torch.manual_seed(derive(0, "step", 5, 0))
    method(x, batch(N))
    assert torch.equal(network.seen[0] == 0, network.seen[2] == 0)


class OnlyForward(Method):
    def forward(self, views, batch):
        raise AssertionError("not called")


@pytest.mark.parametrize(
    ("parts", "n", "sentence"),
    [
        (0, 8, "accumulate must be 1 or more, not 0"),
        (3, 8, "the 8 images on each device are not a multiple of accumulate 3"),
        (2, 8, "accumulate 2 needs a method with `embed` and `objective`, and OnlyForward has"),
    ],
)
def test_a_batch_that_cannot_be_split_is_refused(parts, n, sentence):
    with pytest.raises(UserError, match=sentence):
        check_parts(OnlyForward(Encoder(nn.Flatten(), 3)), parts, n)
    check_parts(OnlyForward(Encoder(nn.Flatten(), 3)), 1, n)


def test_a_rehearsal_changes_nothing():
    method = prepare("BYOL", batch_norm=True)
    before = copied(method)
    take = Step(job(method))
    take.rehearse(0, double(method), batch(N))
    torch.testing.assert_close(copied(method), before, rtol=0, atol=0)
    assert all(p.grad is None for p in method.parameters())


# --------------------------------------------------------------------------------------- compiled


# Dynamo looks at the gradient of tensors that are not leaves.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
@pytest.mark.no_cover  # which slows Dynamo down by half a minute
@pytest.mark.parametrize(
    ("name", "precision"), [("SMI", "float32"), ("SMI", "float16"), ("BarlowTwins", "float16")]
)
def test_a_compiled_step_is_the_same(name, precision, monkeypatch):
    compile_module = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda self: compile_module(self, backend="eager"))
    states = []
    for compiled in (False, True):
        torch.compiler.reset()
        method = make(name)
        take = Step(job(method, accumulate=2, precision=precision, compiled=compiled))
        for i in range(2):
            take(i, views(method, N, i + 1), batch(N, i + 1))
        states.append(copied(method))
    torch.testing.assert_close(*states, rtol=1e-3, atol=1e-4)


# ---------------------------------------------------------------------------------------- float16


@pytest.mark.parametrize("optimizer", ["AdamW", "LARS", "SGD"])
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_every_method_learns_in_float16(name, accumulate, optimizer):
    method = make(name)
    method.epoch = 1
    before = copied(method)
    given = job(method, accumulate=accumulate, precision="float16", optimizer=optimizer)
    given.scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    take = Step(given)
    taken = take(0, views(method, N), batch(N))
    assert not taken.skipped
    assert taken.out.z1.dtype == torch.float16
    assert taken.out.loss.dtype == torch.float32
    after = copied(method)
    assert all(value.isfinite().all() for value in after.values())
    assert all(
        not torch.equal(after[key], before[key])
        for key, p in method.named_parameters()
        if p.requires_grad and p.ndim > 1
    )
    reference = make(name)
    reference.epoch = 1
    exact = Step(job(reference, accumulate=accumulate))(0, views(method, N), batch(N))
    torch.testing.assert_close(taken.gradient_norm, exact.gradient_norm, rtol=0.05, atol=1e-3)


@pytest.mark.parametrize("name", ["BYOL", "MoCo", "DINO", "PIRL", "SwAV"])
def test_a_step_that_overflows_changes_only_the_scale(name):
    method = make(name)
    method.epoch = 1
    given = job(method, precision="float16", optimizer="AdamW")
    given.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**100)
    before = copied(method)
    taken = Step(given)(0, views(method, N), batch(N))
    assert taken.skipped
    assert given.scaler.get_scale() == 2.0**99
    assert not given.optimizer.state
    after = copied(method)
    for key, value in before.items():
        assert torch.equal(after[key], value), key
    assert all(p.grad is None for p in method.parameters())


def test_a_scale_that_collapses_stops_the_run():
    method = make("SMI")
    with torch.no_grad():
        next(method.parameters()).fill_(torch.nan)
    take = Step(job(method, precision="float16"))
    statistics = {key: value for key, value in copied(method).items() if "running_" in key}
    for i in range(26):  # from 2 ** 16 to 2 ** -10
        assert take(i, views(method, N), batch(N)).skipped
    with pytest.raises(TrainingError, match=r"infinite or NaN in float16 .* --precision float32"):
        take(26, views(method, N), batch(N))
    for key, value in statistics.items():  # of a forward pass full of NaN
        assert torch.equal(method.state_dict()[key], value), key


def test_other_precisions_have_no_scale():
    for precision in ("float32", "bfloat16"):
        take = Step(job(make("SMI"), precision=precision))
        assert take.scale is None
    assert Step(job(make("SMI"), precision="float16")).scale is not None


def test_rows_of_float16_zeros_stay_finite():
    z = torch.zeros(2, 4, dtype=torch.float16, requires_grad=True)
    unit_rows(z).sum().backward()
    assert torch.equal(z.grad, torch.zeros_like(z))
    with torch.autocast("cpu", torch.float16):
        assert Prototypes(4, 3)(z).isfinite().all()
    tiny = torch.full((2, 4), 1e-7, dtype=torch.float16)
    torch.testing.assert_close(unit_rows(tiny), torch.full((2, 4), 0.5))


def test_metrics_of_float16_embeddings():
    h, z1, z2 = (100 * torch.randn(32, 16) for _ in range(3))
    half = [x.half() for x in (h, z1, z2)]
    metrics = representation_metrics(*half)
    assert all(value.dtype == torch.float32 for value in metrics.values())
    torch.testing.assert_close(metrics, representation_metrics(h, z1, z2), rtol=1e-2, atol=1e-3)


# ------------------------------------------------------------------------------------------- clip


def test_each_gradient_is_clipped_by_itself():
    parameters = [nn.Parameter(torch.zeros(n)) for n in (2, 2, 3)]
    parameters[0].grad = torch.tensor([3.0, 4.0])
    parameters[1].grad = torch.tensor([0.3, 0.4])
    clip_gradients(parameters, 1.0)
    torch.testing.assert_close(parameters[0].grad, torch.tensor([0.6, 0.8]))
    assert torch.equal(parameters[1].grad, torch.tensor([0.3, 0.4]))
    assert parameters[2].grad is None


def test_a_step_clips_after_the_norm_is_measured():
    norms = []
    for clip in (None, 1e-3):
        method = prepare("SMI")
        before = [p.detach().clone() for p in method.parameters()]
        norms.append(Step(job(method, clip=clip))(0, double(method), batch(N)).gradient_norm)
        moved = [
            torch.linalg.vector_norm(p.detach() - was)
            for p, was in zip(method.parameters(), before, strict=True)
        ]
    assert torch.equal(*norms)
    assert max(moved) <= 0.1 * 1e-3
    assert max(moved) > 0.09 * 1e-3


# -------------------------------------------------------------------------- recomputed activations


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize(("name", "cls"), [("resnet-small", SMI), ("vit_tiny_patch16_224", SimCLR)])
def test_recomputed_activations_change_nothing(name, cls, accumulate):
    results = []
    for recompute in (False, True):
        torch.manual_seed(0)
        method = cls(create_encoder(name, image_size=32), widths=(16, 8))
        if recompute:
            checkpoint_activations(method.encoder)
        take = Step(job(method, recompute=recompute, accumulate=accumulate, optimizer="AdamW"))
        passes = count_passes(method)
        for i in range(2):
            x = [
                torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(2 * i + v))
                for v in range(2)
            ]
            take(i, x, batch(8))
        results.append((copied(method), len(passes)))
    (plain, few), (recomputed, many) = results
    assert many > few  # the setting does something
    torch.testing.assert_close(recomputed, plain)


def count_passes(method: Method) -> list[int]:
    """Return a list that grows with each pass through the last block of the encoder."""
    network = method.encoder.network
    block = (network.layer4 if hasattr(network, "layer4") else network.blocks)[-1]
    passes: list[int] = []
    block.register_forward_pre_hook(lambda *_: passes.append(1))
    return passes


def test_an_encoder_that_cannot_recompute_is_refused():
    with pytest.raises(UserError, match="Flatten cannot checkpoint its activations"):
        checkpoint_activations(Encoder(nn.Flatten(), 3))


# ------------------------------------------------------------------------------------------ memory


def test_out_of_memory_is_recognised():
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory."))
    assert is_out_of_memory(RuntimeError("MPS backend out of memory (MPS allocated: 17 GB)"))
    assert not is_out_of_memory(RuntimeError("shapes do not match"))
    assert not is_out_of_memory(ValueError("out of memory"))


# ----------------------------------------------------------------------------------- two processes


def rows(method: Method, step: int) -> tuple[list[torch.Tensor], object]:
    """Return the joined batch of a step."""
    return double(method, 8, seed=step + 1), batch(8, step + 1)


# Method, parts on each of two processes, parts of one process that gives the same, batch norm,
# and whether the two processes compile.
CASES = [
    ("SMI", 1, 2, True, False),  # two devices are two parts
    ("SMI", 2, 4, False, False),
    ("BarlowTwins", 2, 1, False, False),  # the loss of the joined batch
    ("BarlowTwins", 2, 1, False, True),
    ("MoCo", 2, 1, False, False),
]


def work(rank: int, folder: Path) -> None:
    results = {}
    for name, accumulate, _, batch_norm, compiled in CASES:
        method = prepare(name, batch_norm=batch_norm)
        take = Step(job(method, accumulate=accumulate, compiled=compiled))
        for i in range(3):
            x, whole = rows(method, i)
            object.__setattr__(whole, "index", whole.index.chunk(2)[rank])
            own = [view.chunk(2)[rank] for view in x]
            if i == 0:
                take.rehearse(0, own, whole)
            taken = take(i, own, whole)
        results[name, accumulate, compiled] = copied(method), taken.gradient_norm
    torch.save(results, folder / f"{rank}.pt")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return work_together(__file__, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize(("name", "accumulate", "alone", "batch_norm", "compiled"), CASES)
def test_two_processes_equal_one(name, accumulate, alone, batch_norm, compiled, ranks):
    method = prepare(name, batch_norm=batch_norm)
    take = Step(job(method, accumulate=alone))
    for i in range(3):
        taken = take(i, *rows(method, i))
    for result in ranks:
        state, norm = result[name, accumulate, compiled]
        for key, value in copied(method).items():
            # Each process has the statistics of its own rows.
            if "running_" not in key and "num_batches" not in key:
                torch.testing.assert_close(state[key], value, msg=key)
        torch.testing.assert_close(norm, taken.gradient_norm)


if __name__ == "__main__":
    # The compiler of a test need not be fast, and looks at gradients of tensors without one.
    nn.Module.compile = functools.partialmethod(nn.Module.compile, backend="eager")
    warnings.filterwarnings("ignore", "The .grad attribute of a Tensor")
    join_and_work(work)
