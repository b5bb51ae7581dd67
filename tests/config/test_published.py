"""Resolve methods as their authors publish them."""

from pathlib import Path

import pytest
import yaml

from smi.config.resolve import read_recipe, resolve
from smi.config.schema import RECIPES
from smi.errors import UserError
from smi.methods import METHOD_NAMES, find_method
from smi.views import policy

# policy, optimizer, lr at that batch size, weight decay, vectors decay, warm-up, schedule, epochs
AUTHORS = {
    "SMI": ("imagenet", "LARS", 0.2 * 8, 1e-6, False, 10, "cosine", 300),
    "BarlowTwins": ("byol", "LARS", 0.2 * 8, 1e-6, False, 10, "cosine", 300),
    "VICReg": ("byol", "LARS", 0.2 * 8, 1e-6, False, 10, "cosine", 300),
    "SimCLR": ("simclr", "LARS", 0.3 * 16, 1e-6, False, 10, "cosine", 300),
    "BYOL": ("byol", "LARS", 0.3 * 16, 1e-6, False, 10, "cosine", 300),
    "MoCo": ("mocov1", "SGD", 0.03, 1e-4, True, 0, "step", 200),
    "MoCoV2": ("mocov2", "SGD", 0.03, 1e-4, True, 0, "cosine", 800),
    "SimSiam": ("mocov2", "SGD", 0.05 * 2, 1e-4, True, 0, "cosine", 800),
    "SwAV": ("swav", "LARC", 4.8, 1e-6, True, 10, "cosine", 800),
    "DINO": ("dino", "SGD", 0.03 * 2, 1e-4, False, 10, "cosine", 300),
    "PIRL": ("pirl", "SGD", 0.03 * 4, 1e-4, False, 0, "cosine", 800),
}
RECIPE = """
data: {source: digits}
views: {policy: digits, size: 8, solarize_p: [0.0, 0.5]}
method: {name: SMI, widths: [8, 8], redundancy_weight: 0.5}
methods: {BYOL: {widths: [4, 4]}}
optimizer: {name: AdamW, lr: 1.0e-3, weight_decay: 1.0e-4, warmup_epochs: 1}
epochs: 3
batch_size: 64
as_published:
  smi: {method: {redundancy_weight: 0.1}}
  BYOL:
    views: {policy: cifar10}
    optimizer: {name: SGD, lr: 0.1, weight_decay: 0}
    method: {momentum: 0.9}
    batch_size: 32
"""


@pytest.fixture
def recipe(tmp_path) -> Path:
    file = tmp_path / "mine.yaml"
    file.write_text(RECIPE)
    return file


@pytest.mark.parametrize("name", METHOD_NAMES)
def test_each_method_as_its_authors_train_it(name):
    config = resolve("imagenet", {"method": name, "published": True})
    o = config.optimizer
    schedule = o.schedule or find_method(name).schedule
    lr = o.lr * config.batch_size / 256 if o.scale_lr else o.lr
    assert AUTHORS[name] == (
        config.views.policy,
        o.name,
        pytest.approx(lr),
        o.weight_decay,
        o.decay_vectors,
        o.warmup_epochs,
        schedule,
        config.epochs,
    )
    assert config.published
    assert config.views.size == policy(config.views.policy).views[0].size == 224
    assert (config.views.solarize_p is None) == (name != "SMI")  # that of the policy
    assert config.method.get("crops", 0) == 0  # as in the paper's Table 1


def test_settings_of_single_methods():
    def published(name):
        return resolve("imagenet", {"method": name, "published": True})

    assert published("BYOL").method["momentum"] == 0.99
    assert published("SwAV").method["renormalise"]
    for name in AUTHORS:
        starts_at_one = name in ("MoCo", "MoCoV2", "SwAV", "DINO", "PIRL")
        assert published(name).encoder.get("zero_init_last", True) is not starts_at_one
    vit = {"method": "DINO", "published": True, "encoder": "vit_small_patch16_224"}
    assert "zero_init_last" not in resolve("imagenet", vit).encoder
    assert published("SimCLR").method["temperature"] == 0.1
    assert published("SimCLR").method["last_norm"]
    assert published("SimSiam").optimizer.constant_lr == ("predictor",)
    assert published("DINO").optimizer.clip == 3.0
    assert published("BarlowTwins").optimizer.lr_vectors == 0.0048
    assert published("VICReg").optimizer.lr_vectors is None
    assert published("PIRL").method["num_negatives"] == 32_000
    assert [published(name).method["temperature"] for name in ("MoCo", "MoCoV2")] == [0.07, 0.2]


@pytest.mark.parametrize("name", METHOD_NAMES)
def test_the_configuration_of_a_published_run_resolves_to_itself(name, tmp_path):
    config = resolve("imagenet", {"method": name, "published": True, "seed": 3, "epochs": 20})
    file = tmp_path / "config.yaml"
    file.write_text(config.text())
    assert "as_published" not in yaml.safe_load(config.text())
    assert resolve(file) == resolve(file, {"published": True}) == config


def test_without_published_nothing_changes():
    for name in METHOD_NAMES:
        config = resolve("imagenet", {"method": name})
        assert (config.published, config.batch_size, config.optimizer.name) == (False, 2048, "LARS")
    assert resolve("imagenet", {"published": "false"}) == resolve("imagenet")


def test_overrides_win():
    given = {
        "method": "BYOL",
        "published": "true",
        "epochs": 100,
        "optimizer.lr": 0.45,
        "methods.BYOL.momentum": 0.5,
    }
    config = resolve("imagenet", given)
    assert (config.epochs, config.optimizer.lr, config.optimizer.weight_decay) == (100, 0.45, 1e-6)
    assert config.method["momentum"] == 0.5
    assert resolve("imagenet", given | {"method.momentum": 0.6}).method["momentum"] == 0.6
    shorter = resolve("imagenet", {"method": "BYOL", "published": True, "epochs": 100})
    assert shorter.method["momentum"] == 0.99  # nothing follows the epochs


def test_a_section_replaces_optimizer_and_views_and_adds_settings(recipe):
    smi = resolve(recipe, {"published": True})
    assert (smi.method["widths"], smi.method["redundancy_weight"]) == ((8, 8), 0.1)
    assert (smi.optimizer, smi.views) == (resolve(recipe).optimizer, resolve(recipe).views)
    byol = resolve(recipe, {"published": True, "method": "byol"})
    assert (byol.method["widths"], byol.method["momentum"]) == ((4, 4), 0.9)
    assert (byol.batch_size, byol.epochs, byol.optimizer.warmup_epochs) == (32, 3, 0)
    assert (byol.views.policy, byol.views.size, byol.views.solarize_p) == ("cifar10", 8, None)


def test_a_published_configuration_is_not_turned_into_another(recipe, tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(resolve(recipe, {"published": True}).text())
    for overrides in ({"method": "BYOL"}, {"published": False}):
        with pytest.raises(UserError, match="configuration of SMI as its authors publish it"):
            resolve(file, overrides)


def test_mistakes_are_sentences(recipe):
    with pytest.raises(UserError, match=r"cifar10 does not say .* as_published: imagenet$"):
        resolve("cifar10", {"published": True})
    assert [name for name in RECIPES if "as_published" in read_recipe(name)] == ["imagenet"]
    with pytest.raises(UserError, match="has SMI, BYOL, but not SimCLR"):
        resolve(recipe, {"published": True, "method": "SimCLR"})
    with pytest.raises(UserError, match="published must be true or false, not 'maybe'"):
        resolve("imagenet", {"published": "maybe"})
    recipe.write_text(RECIPE.replace("    batch_size: 32", "    batch: 32"))
    with pytest.raises(UserError, match=r"as_published.BYOL.batch is not a setting: did you mean"):
        resolve(recipe, {"published": True, "method": "BYOL"})
    recipe.write_text(RECIPE.replace("momentum: 0.9", "momentun: 0.9"))
    with pytest.raises(UserError, match=r"did you mean methods.BYOL.momentum\?"):
        resolve(recipe, {"published": True, "method": "BYOL"})
