"""List recipes and compare configurations, without torch."""

import json
import subprocess
import sys

from smi.config.resolve import resolve
from smi.config.schema import RECIPES, changed_settings, differences, list_recipes, plain


def test_recipes_are_listed_with_a_sentence_each():
    recipes = list_recipes()
    lines = recipes.text().splitlines()
    assert [line.split()[0] for line in lines] == list(RECIPES)
    assert all(line.endswith(".") for line in lines)
    listed = json.loads(json.dumps(recipes.plain()))["recipes"]
    assert [recipe["name"] for recipe in listed] == list(RECIPES)
    assert lines[0] == f"{listed[0]['name']:17} {listed[0]['sentence']}"


def test_the_schema_needs_no_torch():
    check = (
        "import sys, smi.config.schema as s; s.list_recipes(); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", check], check=True)


def test_differences_are_named():
    old = plain(resolve("digits"))
    new = plain(resolve("digits", {"optimizer.lr": 0.5, "seed": 3}))
    assert differences(old, new) == [
        "optimizer.lr is 0.001 in the folder, 0.5 was requested",
        "seed is 0 in the folder, 3 was requested",
    ]
    assert differences(old, old) == []
    assert changed_settings({"a": {"b": 1}}, {"c": 2}) == [("a.b", 1, "unset"), ("c", "unset", 2)]
