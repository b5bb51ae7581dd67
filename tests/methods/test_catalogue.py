import json

import pytest

from smi.errors import UserError
from smi.methods import METHOD_NAMES, find_method
from smi.methods.catalogue import print_method, print_methods


def test_table_says_what_each_method_needs(capsys):
    print_methods(as_json=False)
    rows = {
        line.split()[0]: line for line in capsys.readouterr().out.splitlines()[2 : 2 + len(METHOD_NAMES)]
    }
    assert list(rows) == list(METHOD_NAMES)
    assert rows["SMI"].split()[1:6] == ["yes", "no", "-", "no", "no"]
    assert rows["MoCo"].split()[1:6] == ["no", "yes", "queue", "yes", "no"]
    assert "memory bank" in rows["PIRL"]
    assert all(find_method(name).paper in row for name, row in rows.items())


def test_json_has_the_same(capsys):
    print_methods(as_json=True)
    rows = json.loads(capsys.readouterr().out)
    assert [row["method"] for row in rows] == list(METHOD_NAMES)
    assert [row["method"] for row in rows if row["multicrop"]] == ["SwAV", "DINO"]
    assert [row["method"] for row in rows if row["momentum_encoder"]] == [
        "BYOL",
        "MoCo",
        "MoCoV2",
        "DINO",
    ]
    assert [row["method"] for row in rows if not row["gathers"]] == [
        "SMI",
        "BYOL",
        "SimSiam",
        "DINO",
    ]


def test_one_method_with_its_settings(capsys):
    print_method("mocov2", as_json=False)
    text = capsys.readouterr().out
    assert text.startswith("MoCoV2 (Chen et al. 2020, arXiv:2003.04297)\n\nMoCo with what it took")
    cells = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line}
    assert cells["temperature"] == ["float", "0.2"]
    assert cells["queue_size"] == ["int", "65536"]
    print_method("MoCoV2", as_json=True)
    document = json.loads(capsys.readouterr().out)
    assert document["settings"][0] == {
        "setting": "widths",
        "type": "tuple[int, ...]",
        "default": [2048, 128],
    }


def test_a_method_that_is_not_there():
    with pytest.raises(UserError, match="did you mean SwAV"):
        print_method("swaw", as_json=False)
