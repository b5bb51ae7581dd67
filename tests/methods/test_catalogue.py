"""List the methods, and one with its settings."""

import pytest

from smi.errors import UserError
from smi.methods import METHOD_NAMES, find_method
from smi.methods.catalogue import describe_method, describe_methods, list_methods


def test_table_says_what_each_method_needs():
    lines = list_methods().text().splitlines()[2 : 2 + len(METHOD_NAMES)]
    rows = {line.split()[0]: line for line in lines}
    assert tuple(rows) == METHOD_NAMES
    assert rows["SMI"].split()[1:6] == ["yes", "no", "-", "no", "no"]
    assert rows["MoCo"].split()[1:6] == ["no", "yes", "queue", "yes", "no"]
    assert "memory bank" in rows["PIRL"]
    assert all(find_method(name).paper in row for name, row in rows.items())


def test_plain_values_have_the_same():
    rows = list_methods().plain()
    assert tuple(row["method"] for row in rows) == METHOD_NAMES
    assert [row["method"] for row in rows if row["multicrop"]] == ["SwAV", "DINO"]
    with_teacher = ["BYOL", "MoCo", "MoCoV2", "DINO"]
    assert [row["method"] for row in rows if row["momentum_encoder"]] == with_teacher
    without_gather = ["SMI", "BYOL", "SimSiam", "DINO"]
    assert [row["method"] for row in rows if not row["gathers"]] == without_gather


def test_one_method_with_its_settings():
    text = describe_method("mocov2").text()
    assert text.startswith("MoCoV2 (Chen et al. 2020, arXiv:2003.04297)\n\nExtend MoCo")
    cells = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line}
    assert cells["temperature"] == ["float", "0.2"]
    assert cells["queue_size"] == ["int", "65536"]
    assert describe_method("MoCoV2").plain()["settings"][0] == {
        "setting": "widths",
        "type": "tuple[int, ...]",
        "default": (2048, 128),
    }


def test_a_method_of_ones_own_by_import_path():
    text = describe_method("support.homemade.Agreement").text()
    assert text.startswith("Agreement\n\n")
    assert "fails_at" in text


def test_a_name_that_is_not_a_method():
    with pytest.raises(UserError, match="did you mean SwAV"):
        describe_method("swaw")


def test_all_methods_or_one():
    assert describe_methods() == list_methods()
    assert describe_methods("byol") == describe_method("BYOL")
