"""List recipes, methods, encoders, runs and settings."""

import json
import os
import time

import pytest

from smi.config.resolve import resolve
from smi.config.schema import RECIPES, flat, plain
from smi.errors import UserError
from smi.inventory import (
    list_runs,
    list_settings,
    list_things,
    method_meanings,
    setting_meanings,
)
from smi.methods import METHOD_NAMES
from smi.methods.catalogue import describe_method
from support.made_up import write_run


def test_runs_with_state_score_and_age(tmp_path):
    for name in ("a", "deep/er/b"):
        write_run(tmp_path / name)
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "config.yaml").write_text("method: [")
    old = time.time() - 7200
    for file in (tmp_path / "a").iterdir():
        os.utime(file, (old, old))
    odd = write_run(tmp_path / "odd").folder / "metrics.jsonl"
    odd.write_text('{"step": 1, "epoch": 1, "probe": {"knn": null}}\n')
    listed = list_runs(tmp_path)
    assert [row.folder for row in listed.runs][-1] == "a"
    assert {row.folder for row in listed.runs} == {"a", "deep/er/b", "c", "odd"}
    by_name = {row.folder: row for row in listed.runs}
    assert by_name["c"].status == by_name["odd"].status == "damaged"
    assert by_name["a"].seconds_ago == pytest.approx(7200, abs=60)
    assert "2.0 h ago" in listed.text()
    assert json.loads(json.dumps(listed.plain()))["runs"][-1]["folder"] == "a"
    (tmp_path / "none").mkdir()
    assert list_runs(tmp_path / "none").text().startswith("there are no runs below")
    with pytest.raises(UserError, match="there is no folder"):
        list_runs(tmp_path / "nowhere")


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_setting_of_a_recipe_with_its_meaning(recipe):
    listed = list_settings(recipe)
    values = {row.setting: row.value for row in listed.settings}
    if recipe not in ("adapt",):  # which has no images of its own
        assert values == dict(flat({**plain(resolve(recipe)), "methods": {}}))
    meanings = {row.setting: row.meaning for row in listed.settings}
    assert meanings["data.validation"].startswith("share of the training images held out")
    assert recipe in ("adapt",) or "epochs" in values


def test_settings_have_meanings():
    settings = {row.setting for row in list_settings("digits").settings}
    parts = {name for name in settings if name.partition(".")[0] in ("method", "encoder")}
    assert settings - parts == settings & set(setting_meanings())


@pytest.mark.parametrize("name", METHOD_NAMES)
def test_settings_of_a_method_have_meanings(name):
    settings = {row["setting"] for row in describe_method(name).settings}
    assert {f"method.{setting}" for setting in settings} <= set(method_meanings(name))


def test_other_things_take_no_name():
    assert "digits" in list_things("recipes").text()
    assert list_things("methods", "SMI").plain()["method"] == "SMI"
    with pytest.raises(UserError, match="takes no name"):
        list_things("recipes", "digits")
