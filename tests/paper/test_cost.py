"""The cost table against the paper's numbers and against PyTorch's own count of what our losses do."""

import json

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from smi.losses import barlow_twins_loss, nt_xent_loss, smi_loss, vicreg_loss
from smi.paper.cost import costs, giga, peak_bytes, print_cost

FUNCTIONS = {
    "Barlow Twins": barlow_twins_loss,
    "VICReg": vicreg_loss,
    "NT-Xent": nt_xent_loss,
    "SMI": smi_loss,
}


def test_table_2_to_the_digit():
    rows = {
        row.loss: (giga(row.paper_macs), row.entries, row.global_batch_norm, row.gather)
        for row in costs()
    }
    assert rows == {
        "Barlow Twins": ("137.43", "8192×8191", True, True),
        "VICReg": ("274.87", "2(8192×8191)", True, True),
        "NT-Xent": ("103.07", "3(4096×4095)", True, True),
        "SMI": ("12.88", "24(256×255)", False, False),
    }
    assert {row.loss: row.pairs for row in costs()} == {
        "Barlow Twins": 8192 * 8191,
        "VICReg": 2 * 8192 * 8191,
        "NT-Xent": 3 * 4096 * 4095,
        "SMI": 24 * 256 * 255,
    }


@pytest.mark.parametrize(
    ("batch", "dim"),
    [
        (16, 256),
        (75, 400),
        (129, 600),
        (64, 32),
        (7, 14),
        (8, 15),
        (1, 4),
        (1100, 8),
    ],  # few, odd, many, around N = K/2, beyond a tile
)
def test_macs_are_what_torch_counts(batch, dim):
    """Products are all that PyTorch counts, two operations per multiply-accumulate."""
    z1, z2 = torch.randn(2, batch, dim)
    for row in costs(batch, dim, devices=1):
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            FUNCTIONS[row.loss](z1, z2)
        assert counter.get_total_flops() == 2 * row.device_macs, row.loss


def test_how_our_count_differs_from_the_papers():
    """The paper counts three of the four blocks between two views; we compute them all, or little more than the upper triangle of them."""
    many = {
        row.loss: row.device_macs / row.paper_macs for row in costs(batch=8192, dim=8192, devices=1)
    }
    assert (
        many["Barlow Twins"] == many["VICReg"] == 1
    )  # more samples than half the coordinates: nothing is saved
    assert 2 / 3 < many["NT-Xent"] < 0.7
    assert 2 / 3 < many["SMI"] < 0.75
    few = {
        row.loss: row.paper_macs / row.device_macs for row in costs(batch=64, dim=8192, devices=1)
    }
    assert few == pytest.approx(
        {"Barlow Twins": 64, "VICReg": 8192 / (64 + 16), "NT-Xent": 3 / 4, "SMI": 3 / 4}
    )


def test_fused_gradient_is_four_products():
    z1, z2 = (torch.randn(16, 256, requires_grad=True) for _ in range(2))
    with FlopCounterMode(display=False) as counter:
        smi_loss(z1, z2).total.backward()
    assert (
        counter.get_total_flops() == 2 * (4 + 4) * 16 * 16 * 256
    )  # all four blocks of so small a matrix, then its product with u


def test_one_device_sends_nothing():
    assert [row.bytes_sent for row in costs(devices=1)] == [0, 0, 0, 0]
    assert [row.bytes_sent for row in costs(256, 8192, 8)] == [2 * 7 * 256 * 8192 * 4] * 3 + [0]


@pytest.mark.parametrize("macs", [1, 999, 5 * 10**8, 10**9, 123 * 10**9, 10**40])
def test_giga_hides_no_small_number(macs):
    assert float(giga(macs)) == pytest.approx(macs / 1e9, rel=1e-2)


def test_enormous_sizes_are_counted_at_once():
    assert costs(10**12, 10**12, 10**6)[3].paper_macs == 3 * 10**42


def test_peak_bytes_counts_what_is_held_at_once():
    def step():
        for _ in range(3):
            a = torch.zeros(1000)
            b = torch.zeros(500)
            del a, b

    assert 6000 <= peak_bytes(step, torch.device("cpu")) < 6600


def test_printed_and_json(capsys):
    print_cost(batch=8, dim=32, devices=2, measured=True, as_json=True)
    document = json.loads(capsys.readouterr().out)
    assert (document["batch"], document["dim"], document["devices"]) == (8, 32, 2)
    assert document["machine"]
    assert [row["loss"] for row in document["losses"]] == list(FUNCTIONS)
    assert all(
        row["forward_ms"] > 0 and row["backward_ms"] > 0 and row["peak_mb"] > 0
        for row in document["losses"]
    )
    assert document["losses"][3]["paper_macs"] == 3 * 2 * 8 * 8 * 32

    print_cost(batch=8, dim=32, devices=2, measured=True, as_json=False)
    text = capsys.readouterr().out
    assert all(name in text for name in [*FUNCTIONS, "Forward ms", "Peak MB", "MB sent"])
    print_cost(batch=8, dim=32, devices=2, measured=False, as_json=False)
    assert "Forward ms" not in capsys.readouterr().out
