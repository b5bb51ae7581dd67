"""Check the cost table against the paper's numbers and PyTorch's own count of operations."""

import subprocess
import sys

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from smi.losses import barlow_twins_loss, nt_xent_loss, smi_loss, vicreg_loss
from smi.paper.cost import cost, count_costs, giga
from smi.paper.timing import barlow_twins_as_published, largest_dim, peak_bytes

FUNCTIONS = {
    "Barlow Twins": barlow_twins_loss,
    "VICReg": vicreg_loss,
    "NT-Xent": nt_xent_loss,
    "SMI": smi_loss,
}


def test_table_2_to_the_digit():
    rows = {
        row.loss: (giga(row.paper_macs), row.entries, row.global_batch_norm, row.gather)
        for row in count_costs()
    }
    assert rows == {
        "Barlow Twins": ("137.43", "8192×8191", True, True),
        "VICReg": ("274.87", "2(8192×8191)", True, True),
        "NT-Xent": ("103.07", "3(4096×4095)", True, True),
        "SMI": ("12.88", "24(256×255)", False, False),
    }
    assert {row.loss: row.pairs for row in count_costs()} == {
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
    """PyTorch counts products only, with two operations per multiply-accumulate."""
    z1, z2 = torch.randn(2, batch, dim)
    for row in count_costs(batch, dim, devices=1):
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            FUNCTIONS[row.loss](z1, z2)
        assert counter.get_total_flops() == 2 * row.device_macs, row.loss


def test_how_our_count_differs_from_the_papers():
    """The paper counts three of four blocks between two views.

    We compute all four, or little more than their upper triangle.
    """
    many = {
        row.loss: row.device_macs / row.paper_macs
        for row in count_costs(batch=8192, dim=8192, devices=1)
    }
    # With more samples than half the coordinates nothing is saved.
    assert many["Barlow Twins"] == many["VICReg"] == 1
    assert 2 / 3 < many["NT-Xent"] < 0.7
    assert 2 / 3 < many["SMI"] < 0.75
    few = {
        row.loss: row.paper_macs / row.device_macs
        for row in count_costs(batch=64, dim=8192, devices=1)
    }
    assert few == pytest.approx(
        {"Barlow Twins": 64, "VICReg": 8192 / (64 + 16), "NT-Xent": 3 / 4, "SMI": 3 / 4}
    )


def test_fused_gradient_is_four_products():
    z1, z2 = (torch.randn(16, 256, requires_grad=True) for _ in range(2))
    with FlopCounterMode(display=False) as counter:
        smi_loss(z1, z2).total.backward()
    # All four blocks of a matrix this small, then its product with u.
    assert counter.get_total_flops() == 2 * (4 + 4) * 16 * 16 * 256


def test_one_device_sends_nothing():
    assert [row.bytes_sent for row in count_costs(devices=1)] == [0, 0, 0, 0]
    assert [row.bytes_sent for row in count_costs(256, 8192, 8)] == [2 * 7 * 256 * 8192 * 4] * 3 + [
        0
    ]


@pytest.mark.parametrize("macs", [1, 999, 5 * 10**8, 10**9, 123 * 10**9, 10**40])
def test_giga_hides_no_small_number(macs):
    assert float(giga(macs)) == pytest.approx(macs / 1e9, rel=1e-2)


def test_enormous_sizes_are_counted_at_once():
    assert count_costs(10**12, 10**12, 10**6)[3].paper_macs == 3 * 10**42


def test_peak_bytes_counts_what_is_held_at_once():
    def step():
        for _ in range(3):
            a = torch.zeros(1000)
            b = torch.zeros(500)
            del a, b

    assert 6000 <= peak_bytes(step, torch.device("cpu")) < 6600


def test_text_and_plain_values():
    measured = cost(batch=8, dim=32, devices=2, measure=True)
    document = measured.plain()
    assert (document["batch"], document["dim"], document["devices"]) == (8, 32, 2)
    assert document["machine"]
    assert [row["loss"] for row in document["losses"]] == list(FUNCTIONS)
    assert all(
        row["forward_ms"] > 0 and row["backward_ms"] > 0 and row["peak_mb"] > 0
        for row in document["losses"]
    )
    assert document["losses"][3]["paper_macs"] == 3 * 2 * 8 * 8 * 32
    names = [*FUNCTIONS, "Forward ms", "Peak MB", "MB sent", document["machine"]]
    assert all(name in measured.text() for name in names)

    counted = cost(batch=8, dim=32, devices=2)
    assert "Forward ms" not in counted.text()
    assert "machine" not in counted.plain()
    assert "forward_ms" not in counted.plain()["losses"][0]


def test_counting_does_not_import_torch():
    code = "import sys, smi.paper.cost as c; c.cost().text(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_barlow_twins_as_published_is_our_loss():
    z1, z2 = torch.randn(2, 16, 64, generator=torch.Generator().manual_seed(0))
    published = barlow_twins_as_published(z1, z2, redundancy_weight=0.01)
    ours = barlow_twins_loss(z1, z2, redundancy_weight=0.01).total
    torch.testing.assert_close(published, ours)


def test_largest_dim_fits_into_half_of_the_memory():
    assert largest_dim(8192, free_bytes=10**12) == 8192
    assert largest_dim(8192, free_bytes=2 * 6 * 4 * 2048**2) == 2048
    assert largest_dim(8192, free_bytes=1) == 256
