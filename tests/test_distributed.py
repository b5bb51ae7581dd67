"""Compare two real processes that have different data with one process.

The loss of SMI is the mean of local losses. The joined losses equal those of one process with the
joined batch.
"""

import contextlib
import inspect
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from timm.layers import BatchNormAct2d
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from smi import distributed, losses
from smi.distributed import (
    SynchronisedBatchNorm,
    _new_store,
    all_mean,
    has_synchronised_batch_norms,
    join,
    own_rows,
    processes,
    shuffle,
    synchronise_batch_norms,
    unshuffle,
    world_size,
)
from smi.nn import Center, MemoryBank, Queue
from support.two_processes import join_and_work, work_together

N, INPUT = 5, 6
JOINED = {
    "barlow_twins, more coordinates": (losses.barlow_twins_loss, 32),
    "barlow_twins, more samples": (losses.barlow_twins_loss, 4),
    "vicreg, more coordinates": (losses.vicreg_loss, 32),
    "vicreg, more samples": (losses.vicreg_loss, 4),
    "nt_xent": (losses.nt_xent_loss, 8),
    "swav": (lambda z1, z2: losses.swav_loss([z1, z2]), 8),
    "negative_cosine": (losses.negative_cosine_loss, 8),
    "info_nce": (
        lambda z1, z2: losses.info_nce_loss(z1, z2, torch.eye(3, 8, dtype=torch.float64)),
        8,
    ),
    "dino": (
        lambda z1, z2: losses.dino_loss(
            [z1, z2], [z1, z2], torch.linspace(0, 1, 8, dtype=torch.float64)
        ),
        8,
    ),
}
# Means over samples: each process has its own value, and their mean is the joined loss.
MEANS = ("swav", "negative_cosine", "info_nce", "dino")
LOCAL = {"smi": (losses.smi_loss, 8), "smi_plain": (losses.smi_loss_plain, 8)}


# Newer versions of PyTorch have another name for not sending buffers at every step.
NEWER = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
BUFFERS_STAY = {"forward_sync_buffers" if NEWER else "broadcast_buffers": False}
NORMS = {
    "ordinary": lambda: nn.BatchNorm2d(3),
    "with an activation": lambda: BatchNormAct2d(3),
    "without a scale": lambda: nn.BatchNorm2d(3, affine=False),
    "without a momentum": lambda: nn.BatchNorm2d(3, momentum=None),
    "without running statistics": lambda: nn.BatchNorm2d(3, track_running_stats=False),
}


def normed(name: str) -> nn.Module:
    torch.manual_seed(3)
    module = nn.Sequential(NORMS[name](), nn.Flatten(), nn.Linear(12, 4), nn.BatchNorm1d(4))
    for parameter in module.parameters():
        nn.init.normal_(parameter, 1, 0.5)
    return module.double()


def normed_step(module: nn.Module, model: nn.Module, ranks: list[int]) -> dict[str, object]:
    """Return outputs, gradients and statistics after two steps with the data of these ranks."""
    results: dict[str, object] = {}
    for i in range(2):
        module.zero_grad()
        x = torch.cat([images(rank, i) for rank in ranks]).requires_grad_()
        y = model(x)
        y.pow(3).sum(dim=1).mean().backward()
        results |= {f"y{i}": y.detach(), f"x{i}": x.grad}
    results["weights"] = [p.grad for p in module.parameters()]
    results["state"] = dict(module.state_dict())
    with torch.no_grad():
        results["eval"] = module.eval()(images(0, 5))
    return results


def images(rank: int, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(10 * step + rank)
    spread = 1 + 5 * rank
    return rank + spread * torch.randn(N, 3, 2, 2, dtype=torch.float64, generator=generator)


def inputs(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 + rank)
    x1 = torch.randn(N, INPUT, dtype=torch.float64, generator=generator)
    return x1, x1 + 0.3 * torch.randn(N, INPUT, dtype=torch.float64, generator=generator)


def network(dim: int) -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(INPUT, 12), nn.Tanh(), nn.Linear(12, dim)).double()


def step(loss, model, x1, x2):
    """Return the loss, the gradients of the weights, and those of the embeddings."""
    z1, z2 = model(torch.cat([x1, x2])).chunk(2)
    z1.retain_grad()
    z2.retain_grad()
    total = loss(z1, z2).total
    total.backward()
    weights = torch.cat([p.grad.flatten() for p in model.parameters()])
    return {
        "value": total.detach(),
        "weights": weights,
        "embeddings": torch.stack([z1.grad, z2.grad]),
    }


def sharded_step(loss, dim: int, rank: int) -> dict[str, torch.Tensor]:
    """Return the loss and the gradients of the weights, of which FSDP keeps half in each rank."""
    model = network(dim)
    mesh = init_device_mesh("cpu", (2,))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    z1, z2 = model(torch.cat(inputs(rank))).chunk(2)
    total = loss(z1, z2).total
    total.backward()
    gradients = [p.grad.full_tensor().flatten() for p in model.parameters()]
    return {"value": total.detach(), "weights": torch.cat(gradients)}


def collectives_of(loss, dim: int, rank: int) -> dict[str, object]:
    """Return the collectives that a step calls, without those of DDP, and the bytes it sends."""
    called, sent = [], []
    names = [
        name
        for name in dir(dist)
        if name.startswith(
            ("all_", "gather", "reduce", "broadcast", "scatter", "send", "recv", "barrier")
        )
    ]
    originals = {name: getattr(dist, name) for name in names}

    def counted(name):
        def call(*args, **kwargs):
            called.append(name)
            if name == "all_gather_into_tensor":
                sent.append(args[1].numel() * args[1].element_size() * (world_size() - 1))
            return originals[name](*args, **kwargs)

        return call

    try:
        for name in names:
            setattr(dist, name, counted(name))
        step(loss, network(dim), *inputs(rank))
    finally:
        for name, original in originals.items():
            setattr(dist, name, original)
    return {"collectives": called, "bytes_sent": sum(sent)}


def work(rank: int, folder: Path) -> None:
    """Run one of the two processes: every loss under DDP, and every state updated with its data."""
    results: dict[str, object] = {"world_size": world_size()}
    for name, (loss, dim) in (JOINED | LOCAL).items():
        results[name] = step(loss, DistributedDataParallel(network(dim)), *inputs(rank))
        results[name] |= collectives_of(loss, dim, rank)
        results[f"sharded {name}"] = sharded_step(loss, dim, rank)

    for name in NORMS:
        module = normed(name)
        synchronise_batch_norms(module)
        model = DistributedDataParallel(module, **BUFFERS_STAY)
        results[f"norm {name}"] = normed_step(module, model, [rank])
    half = nn.Sequential(nn.BatchNorm2d(3))
    synchronise_batch_norms(half)
    with torch.autocast("cpu", torch.bfloat16):
        results["half"] = half(images(rank, 0).bfloat16()).detach()

    z = torch.randn(3, 4, generator=torch.Generator().manual_seed(rank))
    queue, bank, center = Queue(8, 4), MemoryBank(10, 4), Center(4)
    for _ in range(3):
        queue.push(z)
    bank.update(torch.arange(3) + 3 * rank, z)
    center.update([z, 2 * z])
    results["state"] = {
        "queue": queue.keys,
        "bank": bank.entries,
        "center": center.mean,
        "all_mean": all_mean(z),
        "join": join(z),
    }
    results["own"] = torch.equal(own_rows(join(z)), z)
    results["shuffle"] = shuffle(z)
    results["unshuffle"] = torch.equal(unshuffle(shuffle(z)), z)
    torch.save(results, folder / f"{rank}.pt")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return work_together(__file__, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("name", JOINED)
def test_joined_losses_equal_the_loss_of_the_joined_batch(name, ranks):
    loss, dim = JOINED[name]
    x1, x2 = (torch.cat(x) for x in zip(inputs(0), inputs(1), strict=True))
    expected = step(loss, network(dim), x1, x2)
    values = torch.stack([result[name]["value"] for result in ranks])
    if name in MEANS:
        values = values.mean(0, keepdim=True)
    torch.testing.assert_close(values, expected["value"].expand_as(values))
    for rank, result in enumerate(ranks):
        per_view = 0 if name in ("negative_cosine", "info_nce", "dino") else 2
        # no collective in the backward pass
        assert result[name]["collectives"] == ["all_gather_into_tensor"] * per_view
        # after DDP averaged the gradients, on both processes
        torch.testing.assert_close(result[name]["weights"], expected["weights"])
        ours = expected["embeddings"][:, rank * N : (rank + 1) * N]
        torch.testing.assert_close(result[name]["embeddings"], 2 * ours)  # before averaging


@pytest.mark.parametrize("name", JOINED | LOCAL)
def test_fsdp_gives_the_loss_and_the_gradients_of_ddp(name, ranks):
    for result in ranks:
        torch.testing.assert_close(result[f"sharded {name}"]["value"], result[name]["value"])
        torch.testing.assert_close(result[f"sharded {name}"]["weights"], result[name]["weights"])


@pytest.mark.parametrize("name", LOCAL)
def test_smi_is_the_mean_of_local_losses_without_a_collective(name, ranks):
    loss, dim = LOCAL[name]
    alone = [step(loss, network(dim), *inputs(rank)) for rank in range(2)]
    for result, expected in zip(ranks, alone, strict=True):
        torch.testing.assert_close(result[name]["value"], expected["value"])
        torch.testing.assert_close(result[name]["embeddings"], expected["embeddings"])
        torch.testing.assert_close(
            result[name]["weights"], (alone[0]["weights"] + alone[1]["weights"]) / 2
        )
        assert result[name]["collectives"] == []


def test_bytes_sent_are_those_of_the_cost_table(ranks):
    """Compare with the cost table, which counts float32 embeddings; these are float64."""
    from smi.paper.cost import count_costs

    table = {row.loss: row.bytes_sent for row in count_costs(batch=N, dim=8, devices=2)}
    assert ranks[0]["nt_xent"]["bytes_sent"] == 2 * table["NT-Xent"]
    for name, loss in (
        ("barlow_twins, more coordinates", "Barlow Twins"),
        ("vicreg, more coordinates", "VICReg"),
    ):
        assert ranks[0][name]["bytes_sent"] == 2 * table[loss] * 32 // 8
    assert table["SMI"] == 0


def test_state_is_the_same_on_every_process_and_holds_all_data(ranks):
    assert [result["world_size"] for result in ranks] == [2, 2]
    assert all(result["own"] for result in ranks)
    for name, value in ranks[0]["state"].items():
        torch.testing.assert_close(value, ranks[1]["state"][name], rtol=0, atol=0, msg=name)
    zs = [torch.randn(3, 4, generator=torch.Generator().manual_seed(rank)) for rank in range(2)]
    alone = Queue(8, 4), MemoryBank(10, 4), Center(4)
    for _ in range(3):
        alone[0].push(torch.cat(zs))
    alone[1].update(torch.arange(6), torch.cat(zs))
    alone[2].update([torch.cat(zs), 2 * torch.cat(zs)])
    state = ranks[0]["state"]
    torch.testing.assert_close(state["queue"], alone[0].keys)
    torch.testing.assert_close(state["bank"], alone[1].entries)
    torch.testing.assert_close(state["center"], alone[2].mean)
    torch.testing.assert_close(state["all_mean"], (zs[0] + zs[1]) / 2)
    torch.testing.assert_close(state["join"], torch.cat(zs))


def test_shuffle_exchanges_rows_and_unshuffle_returns_them(ranks):
    zs = torch.cat(
        [torch.randn(3, 4, generator=torch.Generator().manual_seed(rank)) for rank in range(2)]
    )
    assert torch.equal(ranks[0]["shuffle"], zs[[0, 2, 4]])
    assert torch.equal(ranks[1]["shuffle"], zs[[1, 3, 5]])
    assert all(result["unshuffle"] for result in ranks)


@pytest.mark.parametrize("name", NORMS)
def test_synchronised_batch_norms_equal_those_of_the_joined_batch(name, ranks):
    module = normed(name)
    expected = normed_step(module, module, [0, 1])
    for rank, result in enumerate(ranks):
        ours = result[f"norm {name}"]
        torch.testing.assert_close(ours["weights"], expected["weights"])  # averaged by DDP
        torch.testing.assert_close(ours["state"], expected["state"])
        torch.testing.assert_close(ours["eval"], expected["eval"])
        for i in range(2):
            rows = slice(rank * N, (rank + 1) * N)
            torch.testing.assert_close(ours[f"y{i}"], expected[f"y{i}"][rows])
            torch.testing.assert_close(ours[f"x{i}"], 2 * expected[f"x{i}"][rows])  # not averaged


def test_synchronised_batch_norms_in_half_precision(ranks):
    x = torch.cat([images(rank, 0) for rank in range(2)]).bfloat16()
    expected = nn.BatchNorm2d(3)(x.float())
    y = torch.cat([result["half"] for result in ranks])
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), expected, rtol=0.01, atol=0.01)


def test_synchronised_batch_norms_keep_the_state(monkeypatch):
    module = normed("with an activation")
    before = module.state_dict()
    parameters = list(module.parameters())
    synchronise_batch_norms(module)  # one process
    assert not has_synchronised_batch_norms(module)
    monkeypatch.setattr("smi.distributed.world_size", lambda: 2)
    for _ in range(2):
        synchronise_batch_norms(module)
    assert has_synchronised_batch_norms(module)
    assert [type(part) for part in module[::3]] == [SynchronisedBatchNorm] * 2
    assert module.state_dict().keys() == before.keys()
    assert all(a is b for a, b in zip(module.parameters(), parameters, strict=True))
    module.load_state_dict(before)
    assert torch.equal(
        module.eval()(images(0, 0)), normed("with an activation").eval()(images(0, 0))
    )


def test_gpus_have_pytorchs_synchronised_batch_norm(monkeypatch):
    monkeypatch.setattr("smi.distributed.world_size", lambda: 2)
    with FakeTensorMode(), torch.device("cuda:0"):
        module = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), BatchNormAct2d(4))
        names = list(module.state_dict())
        synchronise_batch_norms(module)
        assert module.eval()(torch.zeros(2, 3, 5, 5)).shape == (2, 4, 5, 5)
    assert all(isinstance(norm, nn.SyncBatchNorm) for norm in module[1:])
    assert isinstance(module[2].act, nn.ReLU)
    assert list(module.state_dict()) == names
    assert all(value.device.type == "cuda" for value in module.state_dict().values())


@pytest.mark.parametrize(
    ("device", "error", "expected"),
    [
        ("cuda:0", None, ["nccl", "destroy"]),
        ("cuda:0", RuntimeError, ["nccl", "abort"]),
        ("cuda:0", KeyboardInterrupt, ["nccl", "abort"]),
        ("cpu", RuntimeError, ["gloo", "destroy"]),
    ],
)
def test_a_group_waits_for_hours_and_is_aborted_after_an_error(
    device, error, expected, monkeypatch
):
    calls = []

    monkeypatch.setattr(distributed, "_num_groups", 0)

    def join_group(backend, *, timeout, device_id):
        assert timeout >= timedelta(hours=12)
        assert (device_id is None) == (device == "cpu")
        calls.append(backend)

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(dist, "init_process_group", join_group)
    monkeypatch.setattr(dist, "destroy_process_group", lambda: calls.append("destroy"))
    abort = lambda: calls.append("abort")  # noqa: E731
    monkeypatch.setattr(dist.distributed_c10d, "_abort_process_group", abort)
    with contextlib.suppress(error or ()), processes(torch.device(device)):
        if error:
            raise error
    assert calls == expected


@pytest.mark.parametrize(
    ("attempt", "machines", "earlier", "prefix"),
    [
        ("0", "1", 0, None),
        ("2", "2", 0, None),
        ("2", "1", 0, "attempt 2, group 1"),
        ("0", "1", 1, "attempt 0, group 2"),
        ("2", "2", 1, "attempt 0, group 2"),
    ],
)
def test_a_group_does_not_see_addresses_of_another(attempt, machines, earlier, prefix, monkeypatch):
    """torchrun keeps its store when it starts processes again, and for a second group."""
    kept = dist.HashStore()
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", attempt)
    monkeypatch.setenv("GROUP_WORLD_SIZE", machines)
    monkeypatch.setattr(distributed, "_num_groups", earlier)
    monkeypatch.setattr(dist, "rendezvous", lambda *words, **more: iter([(kept, 1, 2)]))
    made = _new_store()
    if prefix is None:
        assert made == {}
        return
    made["store"].set("address", "here")
    assert kept.check([f"{prefix}/address"])
    assert (made["rank"], made["world_size"]) == (1, 2)


def test_one_process_is_the_identity():
    z = torch.randn(3, 4, requires_grad=True)
    assert world_size() == 1
    assert join(z) is z
    assert own_rows(z) is z
    assert shuffle(z) is z
    assert unshuffle(z) is z
    mean = all_mean(z)
    assert torch.equal(mean, z)
    assert not mean.requires_grad


if __name__ == "__main__":
    join_and_work(work)
