"""Every method on two real processes with different data, under DDP."""

import inspect

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from smi.distributed import has_synchronised_batch_norms, synchronise_batch_norms
from support.tiny import NAMES, batch, make, views, without_batch_norm
from support.two_processes import join_and_work, work_together

N = 4
LOCAL = (
    "SMI",
    "PIRL",
)  # the mean of local losses by design; and by the negatives each process draws for its own images
# Methods keep their state equal on all devices themselves. Newer versions of PyTorch have
# another name for not sending it at every step.
NEWER = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
BUFFERS_STAY = {"forward_sync_buffers" if NEWER else "broadcast_buffers": False}
STATE = ("teacher", "queue", "bank", "center")
# With synchronised batch norms, these are methods of the joined batch.
SYNCHRONISED = [name for name in NAMES if make(name).synchronises_batch_norm]
# More than two views, and small ones, of methods that compare pairs of views.
MORE_VIEWS = {name: {"views": 3, "crops": 2} for name in ("BarlowTwins", "VICReg")}


def data(method, ranks):
    """Views, and which images they are: no two processes share one."""
    parts = [views(method, N, seed=10 + rank) for rank in ranks]
    whole = batch(2 * N)
    x = [torch.cat(view).double() for view in zip(*parts, strict=True)]
    index = torch.cat([whole.index[rank * N : (rank + 1) * N] for rank in ranks])
    given = batch(len(index), seed=20 + ranks[0])
    object.__setattr__(given, "index", index)
    return x, given


def prepare(name, *, batch_norm, **settings):
    method = make(name, **settings).double()
    method.epoch, method.progress = 1, 0.5  # SwAV's queue is in use
    return method if batch_norm else without_batch_norm(method)


def step(method, model, ranks):
    """Gradients, then parameters and state after an update."""
    optimizer = torch.optim.SGD(method.parameters(), lr=0.1)
    model(*data(method, ranks)).loss.backward()
    method.before_step()
    gradients = {name: p.grad.clone() for name, p in method.named_parameters() if p.requires_grad}
    optimizer.step()
    method.after_step()
    state = {name: value.clone() for name, value in method.state_dict().items()}
    return {"gradients": gradients, "state": state}


def work(rank, folder):
    results = {}
    for name in NAMES:
        for batch_norm in (True, False):
            method = prepare(name, batch_norm=batch_norm)
            results[name, batch_norm] = step(
                method, DistributedDataParallel(method, **BUFFERS_STAY), [rank]
            )
    for name in SYNCHRONISED:
        method = prepare(name, batch_norm=True, **MORE_VIEWS.get(name, {}))
        synchronise_batch_norms(method)
        assert has_synchronised_batch_norms(method)
        model = DistributedDataParallel(method, **BUFFERS_STAY)
        results[name, "synchronised"] = step(method, model, [rank])
    torch.save(results, folder / f"{rank}.pt")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return work_together(__file__, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("batch_norm", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_processes_keep_equal_state(name, batch_norm, ranks):
    first, second = (result[name, batch_norm] for result in ranks)
    for key, gradient in first["gradients"].items():
        assert torch.equal(gradient, second["gradients"][key]), key
    shared = [
        key for key in first["state"] if "running_" not in key
    ]  # a batch norm has statistics of its own process
    assert all(any(word in key for key in shared) for word in STATE if hasattr(make(name), word))
    for key in shared:
        assert torch.equal(first["state"][key], second["state"][key]), key


@pytest.mark.parametrize("name", [name for name in NAMES if name not in LOCAL])
def test_gradient_and_state_are_those_of_the_joined_batch(name, ranks):
    method = prepare(name, batch_norm=False)
    expected = step(method, method, [0, 1])
    torch.testing.assert_close(ranks[0][name, False], expected)


@pytest.mark.parametrize("name", SYNCHRONISED)
def test_synchronised_batch_norms_give_the_joined_batch(name, ranks):
    """Compare gradients, weights, teachers and running statistics."""
    method = prepare(name, batch_norm=True, **MORE_VIEWS.get(name, {}))
    expected = step(method, method, [0, 1])
    for result in ranks:
        torch.testing.assert_close(result[name, "synchronised"], expected)


@pytest.mark.parametrize("name", LOCAL)
def test_gradient_is_the_mean_of_local_ones(name, ranks):
    alone = []
    for rank in range(2):
        method = prepare(name, batch_norm=False)
        alone.append(step(method, method, [rank])["gradients"])
    expected = {key: (alone[0][key] + alone[1][key]) / 2 for key in alone[0]}
    torch.testing.assert_close(ranks[0][name, False]["gradients"], expected)


def test_bank_holds_the_images_of_all_processes(ranks):
    expected = prepare("PIRL", batch_norm=False)
    step(expected, expected, [0, 1])
    torch.testing.assert_close(
        ranks[0]["PIRL", False]["state"]["bank.entries"], expected.bank.entries
    )


if __name__ == "__main__":
    join_and_work(work)
