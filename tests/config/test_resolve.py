"""Resolve recipes and overrides."""

import pytest
import yaml

from smi.config.resolve import read_recipe, resolve
from smi.config.schema import RECIPES, plain
from smi.errors import UserError
from smi.methods import METHOD_NAMES, find_method, settings_of
from smi.views import policy

DEFAULTS = {"data.source": "digits", "views.size": 64}  # that `adapt` leaves open


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("method", METHOD_NAMES)
def test_every_recipe_takes_every_method(recipe, method):
    config = resolve(recipe, {"method": method}, DEFAULTS)
    assert config.method["name"] == method
    assert set(config.method) == {"name", *settings_of(find_method(method))} - {"num_images"}
    assert policy(config.views.policy, size=config.views.size).views[0].size == config.views.size


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_resolved_configuration_resolves_to_itself(recipe, tmp_path):
    config = resolve(recipe, {"seed": 7, "method.redundancy_weight": 0.25}, DEFAULTS)
    file = tmp_path / "config.yaml"
    file.write_text(config.text())
    assert resolve(file) == config
    assert yaml.safe_load(config.text()) == plain(config)


def test_the_papers_recipes():
    cifar, imagenet = resolve("cifar10"), resolve("imagenet")
    assert cifar.method["redundancy_weight"] == imagenet.method["redundancy_weight"] == 0.01
    assert cifar.method["widths"] == (4096,) * 3
    assert imagenet.method["widths"] == (8192,) * 3
    assert (
        cifar.epochs,
        cifar.batch_size,
        cifar.optimizer.name,
        cifar.optimizer.lr,
        cifar.optimizer.weight_decay,
    ) == (
        300,
        256,
        "AdamW",
        1e-3,
        1e-4,
    )
    assert (
        imagenet.batch_size,
        imagenet.optimizer.name,
        imagenet.optimizer.lr,
        imagenet.optimizer.lr_vectors,
    ) == (
        2048,
        "LARS",
        0.2,
        0.0048,
    )
    assert (
        imagenet.optimizer.weight_decay,
        imagenet.optimizer.warmup_epochs,
        imagenet.optimizer.final_lr,
    ) == (1e-6, 10, 0.001)
    assert cifar.encoder == {"name": "resnet50", "stem": "cifar"}
    assert resolve("imagenette").views.size == 160


def test_another_method_starts_from_its_own_defaults(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(
        resolve("digits", {"method.redundancy_weight": 0.77, "method.widths": [8, 8]}).text()
    )
    switched = resolve(file, {"method": "BarlowTwins"})
    assert switched == resolve("digits", {"method": "BarlowTwins"})
    assert switched.method["redundancy_weight"] != 0.77
    assert (
        resolve(file, {"method": "smi"}).method["redundancy_weight"] == 0.77
    )  # the same method, however it is spelt
    assert resolve(file, {"encoder": "resnet18"}).encoder == {"name": "resnet18"}


def test_text_becomes_what_the_setting_is():
    config = resolve(
        "digits",
        {
            "optimizer.lr": "1e-3",
            "epochs": "3",
            "method.widths": "[8, 16]",
            "optimizer.schedule": "null",
        },
    )
    assert (
        config.optimizer.lr,
        config.epochs,
        config.method["widths"],
        config.optimizer.schedule,
    ) == (1e-3, 3, (8, 16), None)


def test_a_method_may_have_a_learning_rate_of_its_own(tmp_path):
    path = tmp_path / "mine.yaml"
    recipe = read_recipe("digits")
    recipe["methods"]["SMI"]["lr"] = 2e-3
    path.write_text(yaml.safe_dump(recipe))
    common = recipe["optimizer"]["lr"]
    assert resolve(path).optimizer.lr == 2e-3
    assert resolve(path, {"method": "BYOL"}).optimizer.lr == common
    assert resolve(path, {"optimizer.lr": 0.5}).optimizer.lr == 0.5
    changed = tmp_path / "config.yaml"
    changed.write_text(yaml.safe_dump(plain(resolve(path, {"optimizer.lr": 0.5}))))
    assert resolve(changed).optimizer.lr == 0.5
    recipe["methods"]["SMI"]["lr"] = "fast"
    path.write_text(yaml.safe_dump(recipe))
    with pytest.raises(UserError, match=r"optimizer\.lr must be a number"):
        resolve(path)


def test_a_setting_may_be_a_number_or_a_word():
    for given, weight in (("auto", "auto"), ("0.5", 0.5), (1, 1.0)):
        config = resolve("digits", {"method": "SMI", "method.redundancy_weight": given})
        assert config.method["redundancy_weight"] == weight
    with pytest.raises(UserError, match="redundancy_weight must be a number"):
        resolve("digits", {"method": "SMI", "method.redundancy_weight": "much"})


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ({"optimizer.lrr": 1}, "optimizer.lrr is not a setting: did you mean optimizer.lr?"),
        ({"epoch": 1}, "epoch is not a setting: did you mean epochs?"),
        ({"method.redundancy_wieght": 1}, "did you mean method.redundancy_weight?"),
        ({"method": "BarlowTwin"}, "did you mean BarlowTwins?"),
        ({"epochs": "many"}, "epochs must be a whole number, not 'many'"),
        ({"epochs": 1.5}, "epochs must be a whole number"),
        ({"epochs": 0}, "epochs must be above 0"),
        ({"epochs": True}, "epochs must be a whole number"),
        ({"optimizer.lr": "fast"}, "optimizer.lr must be a number"),
        ({"optimizer.lr": "nan"}, "optimizer.lr must be a number"),
        ({"optimizer": "Adam"}, "optimizer.name must be one of AdamW, LARS, LARC, SGD"),
        ({"optimizer.scale_lr": "maybe"}, "optimizer.scale_lr must be true or false"),
        ({"method.widths": ["a"]}, "method.widths must be a whole number"),
        ({"views.size": -1}, "views.size must be above 0"),
        ({"epochs.more": 1}, "epochs has no settings of its own"),
        ({"data.validation": 1.0}, "data.validation"),
        ({"log": 3}, "log must have settings below it"),
        ({"views.policy": "digits-multicrop"}, "views.policy must be one of"),
        ({"encoder.image_size": 8}, "encoder.image_size is not a setting: use views.size"),
        ({"methods.SMI.redundncy_weight": 3}, "did you mean methods.SMI.redundancy_weight?"),
        ({"method.widths": []}, "method.widths must have"),
        ({"method.widths": "[8,"}, "method.widths cannot be read"),
        ({"optimizer.final_lr": -1}, "optimizer.final_lr must be 0 or more"),
        ({"method": "SwAV", "method.crops": -1}, "method.crops must be 0 or more"),
        ({"optimizer.clip": -3}, "optimizer.clip must be above 0, not -3.0"),
        ({"optimizer.clip": 0}, "optimizer.clip must be above 0"),
        ({"optimizer.final_weight_decay": -1}, "optimizer.final_weight_decay must be 0 or more"),
        ({"accumulate": 0}, "accumulate must be above 0"),
        ({"data.cache_gb": -1}, "data.cache_gb must be 0 or more"),
        ({"log.keep_every": -1}, "log.keep_every must be 0 or more"),
        ({"views.blur_p": [0, 1.5]}, "views.blur_p must be between 0 and 1, not 1.5"),
        ({"views.solarize_p": [-0.1, 0]}, "views.solarize_p must be between 0 and 1, not -0.1"),
        ({"epochs": "9" * 400}, "epochs must be a whole number, not '999"),
        ({"seed": 10**400}, "seed must be a whole number, not 1000"),
        ({"views.size": 20000}, "views.size must be at most 2048"),
    ],
)
def test_mistakes_are_sentences(overrides, sentence):
    with pytest.raises(UserError) as error:
        resolve("digits", overrides)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_a_recipe_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match="did you mean cifar10"):
        resolve("cifar1")
    with pytest.raises(UserError, match="there is no file"):
        resolve(tmp_path / "none.yaml")
    broken = tmp_path / "broken.yaml"
    broken.write_text("a: [1,")
    with pytest.raises(UserError, match=r"broken\.yaml is damaged: while parsing"):
        resolve(broken)


def test_settings_of_each_method_can_be_overridden():
    assert (
        resolve("digits", {"methods.SMI.redundancy_weight": "3"}).method["redundancy_weight"] == 3
    )
    assert (
        resolve(
            "digits", {"methods.BarlowTwins.redundancy_weight": 3, "method": "BarlowTwins"}
        ).method["redundancy_weight"]
        == 3
    )


@pytest.mark.parametrize("source", ["2024-01-01", "010", "a #b", "no", "@photos", "null", "1e3"])
def test_text_stays_text(source):
    assert resolve("digits", {"data": source}).data.source == source


def test_arguments_of_an_encoder_are_guessed():
    encoder = resolve(
        "digits",
        {
            "encoder": "a.B",
            "encoder.drop": "1e-3",
            "encoder.deep": "true",
            "encoder.widths": "[1, 2]",
        },
    ).encoder
    assert encoder == {"name": "a.B", "drop": 1e-3, "deep": True, "widths": [1, 2]}


def test_whole_images_grow_and_shrink_with_views(tmp_path):
    def sizes(recipe, overrides=None):
        views = resolve(recipe, overrides).views
        return views.size, views.input_size, views.whole_size

    assert sizes("cifar10-small") == (32, 48, 48)
    assert sizes("cifar10-small", {"views.size": 24}) == (24, 36, 36)
    assert sizes("cifar10-small", {"views.size": "24"}) == (24, 36, 36)  # as a command has it
    assert sizes("cifar10-small", {"views.input_size": 40}) == (32, 40, 40)
    assert sizes("cifar10-small", {"views.input_size": None}) == (32, None, 32)
    assert sizes("cifar10-small", {"views.size": 24, "views.input_size": None}) == (24, None, 24)
    assert sizes("cifar10", {"views.size": 24}) == (24, None, 24)
    (tmp_path / "mine.yaml").write_text("base: cifar10-small\nviews: {size: 64}")
    assert sizes(tmp_path / "mine.yaml") == (64, 96, 96)
    assert sizes(tmp_path / "mine.yaml", {"views.size": 32}) == (32, 48, 48)
    (tmp_path / "both.yaml").write_text("base: cifar10-small\nviews: {size: 64, input_size: 80}")
    assert sizes(tmp_path / "both.yaml") == (64, 80, 80)
    for size in ("large", 0, -1, 10**400):
        with pytest.raises(UserError, match=r"views\.size"):
            resolve("cifar10-small", {"views.size": size})
    views = {"policy": "digits", "input_size": 64}
    (tmp_path / "whole.yaml").write_text(yaml.safe_dump(read_recipe("digits") | {"views": views}))
    config = resolve(tmp_path / "whole.yaml", {"views.size": 48}, {"views.size": 96})
    assert config.views.input_size == 64  # nothing says which size of views it belongs to


def test_a_recipe_may_change_a_base(tmp_path):
    (tmp_path / "mine.yaml").write_text("base: digits\nepochs: 7\nmethod: {redundancy_weight: 0.3}")
    assert resolve(tmp_path / "mine.yaml") == resolve(
        "digits", {"epochs": 7, "method.redundancy_weight": 0.3}
    )
    (tmp_path / "more.yaml").write_text("base: mine.yaml\nmethod: BarlowTwins\noptimizer: {lr: 1}")
    assert resolve(tmp_path / "more.yaml") == resolve(
        "digits", {"epochs": 7, "method": "BarlowTwins", "optimizer.lr": 1.0}
    )
    (tmp_path / "same.yaml").write_text("base: mine.yaml\nencoder: resnet18")
    assert resolve(tmp_path / "same.yaml").encoder == {"name": "resnet18"}
    (tmp_path / "rate.yaml").write_text("base: cifar10-small\noptimizer: {lr: 0.5}")
    for method in ("SMI", "BarlowTwins"):  # the base has a rate of its own for SMI
        assert resolve(tmp_path / "rate.yaml", {"method": method}).optimizer.lr == 0.5
    (tmp_path / "round.yaml").write_text("base: round.yaml")
    with pytest.raises(UserError, match="has more than 10 bases"):
        resolve(tmp_path / "round.yaml")
    (tmp_path / "wrong.yaml").write_text("base: cifar11")
    with pytest.raises(UserError, match="there is no recipe 'cifar11': did you mean cifar10"):
        resolve(tmp_path / "wrong.yaml")


def test_all_missing_settings_are_told_at_once(tmp_path):
    (tmp_path / "r.yaml").write_text("data: {source: digits}\nviews: {size: 8}\nepochs: 1\n")
    names = "views.policy, optimizer.name, optimizer.lr, optimizer.weight_decay, batch_size"
    with pytest.raises(UserError, match=f"{names} are not set, and have no default"):
        resolve(tmp_path / "r.yaml")


def test_another_resnet_divides_photographs_as_the_recipe_does():
    assert resolve("imagenette-small", {"encoder": "resnet18"}).encoder == {
        "name": "resnet18",
        "stem": "standard",
    }
    assert resolve("imagenette-small", {"encoder": "vit_tiny_patch16_224"}).encoder == {
        "name": "vit_tiny_patch16_224"
    }
    assert resolve("cifar10-small", {"encoder": "resnet18"}).encoder == {"name": "resnet18"}
