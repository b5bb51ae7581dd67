"""Check what holds for every method."""

import copy
import inspect
import json

import pytest
import torch
from torch import Tensor

from smi.data import Batch
from smi.errors import UserError
from smi.losses import Terms
from smi.losses.smi import Weight
from smi.methods import (
    METHOD_NAMES,
    LossSetup,
    Method,
    MethodDescription,
    Output,
    create_method,
    find_method,
    settings_of,
)
from smi.nn import Encoder
from smi.views import Views, policy
from support.tiny import NAMES, NUM_IMAGES, batch, make, train, views

FROZEN = {"SwAV": {"prototypes.weight"}, "DINO": {"last.weight"}}  # in the first epoch
WITH_TEACHER = ["BYOL", "MoCo", "MoCoV2", "DINO"]
every = pytest.mark.parametrize("name", NAMES)


def step(method: Method, n: int = 6, seed: int = 1) -> Output:
    return method(views(method, n, seed), batch(n, seed))


def gradients(method: Method) -> dict[str, Tensor | None]:
    return {name: p.grad for name, p in method.named_parameters() if p.requires_grad}


@every
@pytest.mark.parametrize("n", [2, 5, 6])
def test_every_parameter_is_trained(name, n):
    method = make(name)
    out = step(method, n)
    assert out.loss.isfinite()
    assert out.h.shape == (n, 10)
    assert out.z1.shape == out.z2.shape == (n, 6)
    assert out.loss.item() == pytest.approx(
        sum(term.item() for term in out.terms.values()), abs=1e-5
    )
    out.loss.backward()
    for parameter, grad in gradients(method).items():
        assert grad is not None, parameter
        assert grad.isfinite().all(), parameter
        if n > 2:  # of two samples, batch norm leaves only the signs
            assert grad.abs().max() > 0, parameter


@every
def test_frozen_parameters_have_no_gradient_in_the_first_epoch(name):
    method = make(name)
    for method.epoch in (0, 1):
        step(method).loss.backward()
        method.before_step()
        frozen = {parameter for parameter, grad in gradients(method).items() if grad is None}
        assert frozen == (FROZEN.get(name, set()) if method.epoch == 0 else set())


@pytest.mark.parametrize("name", FROZEN)
@pytest.mark.parametrize("make_optimizer", [torch.optim.AdamW, torch.optim.SGD])
def test_optimizers_skip_frozen_parameters(name, make_optimizer):
    method = make(name)
    optimizer = make_optimizer(method.parameters(), lr=0.1, weight_decay=0.1)
    (parameter,) = FROZEN[name]
    start = method.get_parameter(parameter).clone()
    train(method, optimizer, range(2))
    assert torch.equal(method.get_parameter(parameter), start)
    train(method, optimizer, range(2, 3))
    assert not torch.equal(method.get_parameter(parameter), start)


@every
def test_loss_falls_on_one_batch(name):
    """Hold teachers, queues and centres still: a moving target can raise the loss."""
    method = make(name)
    optimizer = torch.optim.AdamW(method.parameters(), lr=3e-3)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = step(method).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-3:]) / 3 < min(losses[:2])


@every
def test_resumed_training_is_the_same_to_the_bit(name):
    whole, resumed = make(name), make(name)
    optimizers = [torch.optim.AdamW(method.parameters(), lr=1e-2) for method in (whole, resumed)]
    train(whole, optimizers[0], range(3))
    saved = copy.deepcopy([whole.state_dict(), optimizers[0].state_dict()])
    expected = train(whole, optimizers[0], range(3, 6))
    resumed.load_state_dict(saved[0])
    optimizers[1].load_state_dict(saved[1])
    assert train(resumed, optimizers[1], range(3, 6)) == expected
    assert all(
        torch.equal(value, resumed.state_dict()[key]) for key, value in whole.state_dict().items()
    )


@every
def test_nothing_is_drawn_from_the_global_generator(name):
    method = make(name)
    method.eval()  # statistics of batch norms stay
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = step(method)
    method.after_step()
    assert torch.equal(torch.get_rng_state(), before)
    again = make(name).eval()
    torch.manual_seed(2)
    assert torch.equal(step(again).loss, first.loss)


@every
def test_a_forward_pass_alone_changes_no_state(name):
    """Only after_step changes state, so a loss can be computed without side effects."""
    method = make(name).eval()
    before = copy.deepcopy(method.state_dict())
    step(method)
    assert all(torch.equal(value, before[key]) for key, value in method.state_dict().items())


@every
def test_bfloat16_gives_finite_losses(name):
    method = make(name)
    exact = step(method).loss
    with torch.autocast("cpu", torch.bfloat16):
        out = step(method)
    assert out.terms.total.dtype == torch.float32
    assert out.loss.item() == pytest.approx(exact.item(), rel=0.1, abs=0.1)
    out.loss.backward()
    assert all(grad is not None and grad.isfinite().all() for grad in gradients(method).values())
    method.after_step()
    assert all(
        value.dtype in (torch.float32, torch.int64) for value in method.state_dict().values()
    )


@every
def test_methods_with_a_momentum_encoder_have_a_teacher(name):
    method = make(name)
    assert method.momentum_encoder == (name in WITH_TEACHER)
    assert any(key.startswith("teacher.") for key in method.state_dict()) == (name in WITH_TEACHER)
    assert method.shared_network == (name not in WITH_TEACHER)


@pytest.mark.parametrize("name", WITH_TEACHER)
@pytest.mark.parametrize("progress", [0.0, 0.3])
def test_teacher_moves_by_its_momentum_alone(name, progress):
    method = make(name)
    optimizer = torch.optim.SGD(method.parameters(), lr=0.1)
    method.epoch, method.progress = 1, progress
    before = copy.deepcopy(method.teacher)
    step(method).loss.backward()
    optimizer.step()
    method.after_step()
    momentum = (
        0.999
        if name.startswith("MoCo")
        else 1 - (1 - 0.996) * (torch.tensor(progress * torch.pi).cos().item() + 1) / 2
    )
    student = [*method.encoder.parameters(), *method.projector.parameters()]
    for old, new, followed in zip(
        before.parameters(), method.teacher.parameters(), student, strict=True
    ):
        assert new.grad is None
        assert not new.requires_grad
        torch.testing.assert_close(
            new, momentum * old + (1 - momentum) * followed.detach(), rtol=0, atol=3e-7
        )  # some roundings


@every
def test_views_are_what_the_policy_gives(name):
    method = make(name)
    recipe = policy("digits")
    wanted = method.policy(recipe)
    images = torch.randint(0, 256, (4, 3, 8, 8), dtype=torch.uint8)
    given = Batch(images, torch.arange(4), 0)
    x = Views(wanted, compiled=False)(given.images, given.generator())
    assert [view.shape[-1] for view in x] == {
        "SwAV": [8, 8, 3, 3, 3],
        "DINO": [8, 8, 3, 3, 3],
        "PIRL": [8] + [2] * 9,
    }.get(name, [8, 8])
    assert method(x, given).loss.isfinite()


@pytest.mark.parametrize("name", ["SwAV", "DINO"])
def test_small_views_can_be_left_out(name):
    method = make(name, crops=0)
    recipe = policy("cifar10")
    assert method.policy(recipe) is recipe
    assert step(method).loss.isfinite()


def test_moco_differs_from_its_second_version_in_head_blur_temperature_and_schedule():
    first, second = make("MoCo"), make("MoCoV2")
    recipe = policy("cifar10")
    assert [view.blur_p for view in first.policy(recipe).views] == [0.0, 0.0]
    assert second.policy(recipe) is recipe
    assert (first.schedule, second.schedule) == ("step", "cosine")
    assert [len(method.projector) for method in (first, second)] == [1, 3]
    assert [settings_of(type(method))["temperature"].default for method in (first, second)] == [
        0.07,
        0.2,
    ]


@every
def test_settings_have_types_and_defaults(name):
    method = find_method(name)
    assert method.__name__ == name
    assert method.paper
    assert method.__doc__ != Method.__doc__
    assert method.display_name
    for setting in settings_of(method).values():
        assert setting.annotation in (bool, int, float, tuple[int, ...], Weight)
        assert setting.default is not inspect.Parameter.empty
    (encoder,) = [
        p for p in inspect.signature(method).parameters.values() if p.kind is not p.KEYWORD_ONLY
    ]
    assert encoder.annotation is Encoder


def test_num_images_is_passed_to_methods_with_that_setting():
    assert len(make("PIRL").bank.entries) == NUM_IMAGES
    assert len(create_method("pirl", make("SMI").encoder).bank.entries) == 50_000


class Mine(Method):
    def __init__(self, encoder: Encoder, *, weight: float = 2.0):
        super().__init__(encoder)
        self.weight = weight

    def forward(self, views, batch):
        h1, h2 = (self.encoder(x) for x in views)
        return Output(Terms(alignment=self.weight * (h1 - h2).square().mean()), h1, h1, h2)


def test_a_method_of_ones_own_by_import_path():
    method = create_method(f"{__name__}.Mine", make("SMI").encoder, weight=3.0)
    assert isinstance(method, Mine)
    assert step(method).loss.isfinite()
    method.before_step()
    method.after_step()


def test_names_that_are_not_methods():
    with pytest.raises(UserError, match="did you mean BarlowTwins"):
        find_method("barlow-twins")
    with pytest.raises(UserError, match=f"choose one of {', '.join(METHOD_NAMES)}"):
        find_method("xyz")
    with pytest.raises(UserError, match="not a subclass"):
        find_method(f"{__name__}.step")
    with pytest.raises(UserError, match="no module 'nowhere'"):
        find_method("nowhere.Mine")


def test_swavs_queue_is_divided_between_processes(monkeypatch):
    monkeypatch.setattr("smi.methods.swav.world_size", lambda: 3)
    with pytest.raises(UserError, match="queue_size 16 is not a multiple of the 3 processes"):
        make("SwAV")
    make("SwAV", queue_size=15)


SYNCHRONISED = ["BarlowTwins", "VICReg", "SimCLR", "BYOL", "SimSiam", "SwAV", "DINO"]


def test_published_batch_norms():
    """Check the facts of the authors' code; MoCo shuffles instead, SMI and PIRL do neither."""
    names = [name for name in NAMES if find_method(name).synchronises_batch_norm]
    assert names == SYNCHRONISED


@every
def test_description_is_complete_and_ready_for_json(name):
    method = find_method(name)
    description = method.describe(LossSetup(64, 256))
    assert json.loads(json.dumps(description)) == description
    assert MethodDescription.parse(description).plain() == description
    assert description["loss_range"][0] < description["loss_range"][1]
    assert description["collapse_remedies"] != Method.collapse_remedies
    steady = ["SMI", "BarlowTwins", "VICReg", "SimCLR"]
    assert description["loss_may_rise"] == (name not in steady)
    assert description["least_loss_is_collapse"] == (name in ["BYOL", "SimSiam"])
    assert description["ignores_sign"] == (name == "SMI")


@every
def test_the_students_encoder_is_exported_except_dinos(name):
    method = make(name)
    exported = method.get_submodule(method.exported_encoder)
    if name == "DINO":
        assert exported is method.teacher.network[0]
        assert isinstance(exported, Encoder)
    else:
        assert exported is method.encoder


@pytest.mark.parametrize("image_blur", [True, False])
def test_pirls_image_is_blurred_only_on_request(image_blur):
    image, patches = make("PIRL", image_blur=image_blur).policy(policy("cifar10")).views
    assert (image.blur_p, patches.blur_p) == (0.5 if image_blur else 0.0, 0.0)


def test_simclrs_last_norm_has_a_scale_and_no_shift():
    method = make("SimCLR", last_norm=True)
    norm = method.projector[-1]
    assert isinstance(norm, torch.nn.BatchNorm1d)
    assert norm.weight.requires_grad
    assert not norm.bias.requires_grad
    step(method).loss.backward()
    assert norm.weight.grad.abs().max() > 0
    assert norm.bias.grad is None
    assert not norm.bias.any()
    assert isinstance(make("SimCLR").projector[-1], torch.nn.Linear)


def test_dinos_head_starts_as_the_authors_head():
    method = make("DINO", widths=(256, 256, 64), norm=False, num_outputs=500)
    layers = [layer for layer in method.projector if isinstance(layer, torch.nn.Linear)]
    assert len(layers) == 3
    for layer in layers:
        assert layer.weight.std().item() == pytest.approx(0.02, rel=0.1)
        assert not layer.bias.any()
    # Even between -1/8 and 1/8: vectors of about 0.58.
    lengths = method.last.weight.norm(dim=1)
    assert method.last.weight.abs().max().item() == pytest.approx(1 / 8, rel=0.01)
    assert lengths.mean().item() == pytest.approx(3**-0.5, rel=0.05)
    for ours, copied in ((method.projector, method.teacher.network[1]), (method.last, None)):
        copied = method.teacher_last.network[0] if copied is None else copied
        for a, b in zip(ours.parameters(), copied.parameters(), strict=True):
            assert torch.equal(a, b)


def test_dino_refuses_a_temperature_that_is_not_positive():
    with pytest.raises(ValueError, match="first_teacher_temperature must be positive"):
        make("DINO", first_teacher_temperature=0.0)


def test_swavs_prototypes_can_keep_length_1():
    method = make("SwAV", renormalise=True)
    optimizer = torch.optim.SGD(method.parameters(), lr=1.0)
    start = method.prototypes.weight.detach().clone()
    train(method, optimizer, range(4))
    weight = method.prototypes.weight.detach()
    torch.testing.assert_close(weight.norm(dim=1), torch.ones(len(weight)))
    assert not torch.equal(weight, start)
    z = torch.randn(3, 6)
    torch.testing.assert_close(
        method.prototypes(z), torch.nn.functional.normalize(z, dim=1) @ weight.T
    )
    grown = make("SwAV")
    train(grown, torch.optim.SGD(grown.parameters(), lr=1.0), range(4))
    assert grown.prototypes.weight.norm(dim=1).max() > 1.1


def test_display_names():
    names = {name: find_method(name).display_name for name in NAMES}
    assert {name: text for name, text in names.items() if name != text} == {
        "BarlowTwins": "Barlow Twins",
        "MoCoV2": "MoCo v2",
    }
    assert Mine.display_name == "Mine"


def test_moco_has_one_sub_batch_or_more():
    with pytest.raises(UserError, match=r"method.key_parts must be 1 or more, not 0"):
        make("MoCo", key_parts=0)
