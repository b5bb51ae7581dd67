import copy
import sys

import pytest
import torch
from torch import nn

from smi.errors import UserError
from smi.nn import Encoder, create_encoder
from smi.nn.encoders import is_import_path, require_timm_name


class Flat(nn.Module):
    """Stand for a network of a user."""

    def __init__(self, width: int = 7):
        super().__init__()
        self.linear = nn.Linear(3, width)

    def forward(self, x):
        return self.linear(x.mean(dim=(2, 3)))


def image_map():
    return nn.Conv2d(3, 4, 1)


def no_network():
    return "resnet"


def here(name: str) -> str:
    return f"{__name__}.{name}"


@pytest.mark.parametrize(
    ("name", "size", "stem", "dim", "side"),
    [
        ("resnet-small", 32, None, 256, 2),  # half
        ("resnet-small", 8, None, 256, 1),  # cifar
        ("resnet-small", 96, None, 256, 3),  # standard
        ("resnet-small", 32, "cifar", 256, 4),
        ("resnet-small", 32, "standard", 256, 1),
        ("resnet-small", 64, "quarter", 256, 2),
        ("resnet18", 32, None, 512, 4),  # cifar
        ("resnet18", 96, None, 512, 3),
        ("vit_tiny_patch16_224", 32, None, 192, 2),
        ("convnext_atto", 32, None, 320, 1),
    ],
)
def test_features_and_their_map(name, size, stem, dim, side):
    encoder = create_encoder(name, image_size=size, stem=stem).eval()
    x = torch.randn(2, 3, size, size)
    assert encoder.training is False
    assert encoder.dim == dim
    assert encoder(x).shape == (2, dim)
    assert encoder.map(x).shape == (2, dim, side, side)


def test_cifar_stem_is_three_by_three_without_pooling():
    network = create_encoder("resnet18", image_size=32).network
    assert network.conv1.kernel_size == (3, 3)
    assert network.conv1.stride == (1, 1)
    assert network.conv1.bias is None
    assert isinstance(network.maxpool, nn.Identity)
    assert create_encoder("resnet18", image_size=224).network.conv1.kernel_size == (7, 7)


def test_creating_an_encoder_does_not_change_batch_norm_statistics():
    encoder = create_encoder("resnet-small", image_size=32)
    assert encoder.training
    assert torch.equal(
        encoder.network.bn1.running_mean, torch.zeros_like(encoder.network.bn1.running_mean)
    )
    assert encoder.network.bn1.num_batches_tracked == 0


def test_a_transformer_takes_smaller_views_too():
    encoder = create_encoder("vit_tiny_patch16_224", image_size=32, patch_size=4)
    assert (
        encoder(torch.randn(2, 3, 32, 32)).shape
        == encoder(torch.randn(2, 3, 14, 14)).shape
        == (2, 192)
    )
    assert encoder.map(torch.randn(2, 3, 16, 16)).shape == (2, 192, 4, 4)


def test_a_network_of_ones_own_by_import_path():
    encoder = create_encoder(here("Flat"), image_size=8, width=5)
    assert isinstance(encoder.network, Flat)
    assert encoder.dim == 5
    with pytest.raises(
        UserError, match="Flat has no feature map: it has no method forward_features"
    ):
        encoder.map(torch.randn(1, 3, 8, 8))


def test_a_map_with_channels_last_is_permuted():
    class Last(Flat):
        output_fmt = "NHWC"  # as timm's Swin transformers say

        def forward_features(self, x):
            return x.permute(0, 2, 3, 1)

    x = torch.randn(2, 3, 8, 5)
    assert torch.equal(Encoder(Last(), 7).map(x), x)


@pytest.mark.parametrize("found", [torch.zeros(2, 5), (torch.zeros(2, 5, 4, 4),)])
def test_features_that_are_not_a_map(found):
    class Odd(Flat):
        def forward_features(self, x):
            return found

    with pytest.raises(
        UserError, match="Odd has no feature map: its features before pooling are not"
    ):
        Encoder(Odd(), 7).map(torch.randn(2, 3, 8, 8))


def test_any_network_can_be_wrapped():
    assert Encoder(nn.Linear(4, 3), 3)(torch.randn(2, 4)).shape == (2, 3)


@pytest.mark.parametrize(
    ("name", "arguments", "sentence"),
    [
        ("resnet81", {}, "there is no encoder 'resnet81': did you mean resnet"),
        ("xyzzy", {}, "there is no encoder 'xyzzy': `smi list encoders` lists some"),
        ("resnet18", {"wings": 2}, "unexpected keyword argument 'wings'"),
        (
            "convnext_atto",
            {"stem": "cifar"},
            "the cifar stem is for ResNets; convnext_atto is not a ResNet",
        ),
        (here("Nothing"), {}, "has no 'Nothing'"),
        ("nowhere.Network", {}, "there is no module 'nowhere'"),
        (here("no_network"), {}, "returned a str, not a torch.nn.Module"),
        (
            here("image_map"),
            {},
            r"images \[N, 3, 32, 32\] into features \[N, F\]; two images gave \[2, 4, 32, 32\]",
        ),
    ],
)
def test_mistakes_are_sentences(name, arguments, sentence):
    with pytest.raises(UserError, match=sentence) as caught:
        create_encoder(name, image_size=32, **arguments)
    assert "\n" not in str(caught.value)


# ------------------------------------------------------------------------------- names with a tag


def test_a_name_with_a_tag_is_the_same_network():
    torch.manual_seed(5)
    tagged = create_encoder("test_resnet.r160_in1k", image_size=32)
    torch.manual_seed(5)
    plain = create_encoder("test_resnet", image_size=32)
    assert tagged.network.conv1.kernel_size == (3, 3)
    assert isinstance(tagged.network.maxpool, nn.Identity)
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(tagged.eval()(x), plain.eval()(x))


def test_a_transformer_with_a_tag_takes_small_images():
    encoder = create_encoder("vit_tiny_patch16_224.augreg_in21k", image_size=32)
    assert encoder(torch.randn(2, 3, 24, 24)).shape == (2, 192)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "resnet18.a1_in1",
            r"timm has no weights 'resnet18.a1_in1': did you mean resnet18.a1_in1k",
        ),
        ("test_resnet.none", r"timm has no weights 'test_resnet.none': .*r160_in1k"),
        ("test_mambaout.none", "timm has no weights 'test_mambaout.none': it has no tags"),
    ],
)
def test_an_unknown_tag_is_a_sentence(name, sentence):
    with pytest.raises(UserError, match=sentence) as caught:
        create_encoder(name, image_size=32)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("resnet18", False),
        ("resnet-small", False),
        ("resnet18.a1_in1k", False),
        ("resnet18.wrong", False),
        ("mine.Net", True),
        ("support.homemade.Net", True),
        ("resnet18.models.Net", True),
    ],
)
def test_import_paths_and_names_of_timm(name, expected):
    assert is_import_path(name) is expected


def test_an_import_path_works_without_timm(monkeypatch):
    """It takes seconds to import."""
    monkeypatch.setitem(sys.modules, "timm", None)
    assert create_encoder("support.homemade.Net", image_size=8, width=5).dim == 5


def test_names_that_timm_does_not_have():
    for name in ("resnet18", "resnet-small", "resnet18.any_tag"):
        require_timm_name(name)
    with pytest.raises(UserError, match="there is no encoder 'resnett18': did you mean resnet18"):
        require_timm_name("resnett18")


# -------------------------------------------------------------------------- batch norm statistics


class Parent(nn.Module):
    """Hold an encoder and a batch norm of its own, as methods do."""

    def __init__(self, encoder: Encoder):
        super().__init__()
        self.encoder = encoder
        self.projector = nn.Sequential(nn.Linear(encoder.dim, 4), nn.BatchNorm1d(4))

    def forward(self, x):
        return self.projector(self.encoder(x))


@pytest.fixture
def trained() -> Encoder:
    """Return an encoder whose batch norms have other statistics than any batch."""
    encoder = create_encoder("support.homemade.Net", image_size=8)
    nn.init.normal_(encoder.network.norm.running_mean)
    nn.init.uniform_(encoder.network.norm.running_var, 0.5, 2)
    return encoder


def statistics(encoder: Encoder) -> dict[str, torch.Tensor]:
    return {name: buffer.clone() for name, buffer in encoder.named_buffers()}


def assert_kept(encoder: Encoder, x: torch.Tensor) -> None:
    """Assert that training uses and keeps the statistics, and trains weights and biases."""
    before = statistics(encoder)
    assert before
    assert encoder.training
    h = encoder(x)
    for name, buffer in encoder.named_buffers():
        assert torch.equal(buffer, before[name]), name
    h.square().sum().backward()
    for norm in encoder.modules():
        if isinstance(norm, nn.BatchNorm2d):
            assert norm.weight.grad.abs().sum() > 0
            assert norm.bias.grad.abs().sum() > 0
    encoder.zero_grad()
    with torch.no_grad():
        modes = [part.training for part in encoder.modules()]
        assert torch.equal(encoder.eval()(x), h)
    encoder.train()
    assert [part.training for part in encoder.modules()] == modes


def test_kept_statistics(trained):
    x = torch.randn(6, 3, 8, 8)
    trained.keep_statistics = True
    trained.train()
    assert trained.network.drop.training
    assert_kept(trained, x)


def test_statistics_are_updated_unless_they_are_kept(trained):
    x = torch.randn(6, 3, 8, 8)
    before = statistics(trained)
    h = trained(x)
    assert not torch.equal(trained.network.norm.running_mean, before["network.norm.running_mean"])
    assert trained.network.norm.num_batches_tracked == 1
    assert not torch.equal(trained.eval()(x), h)


def test_kept_statistics_survive_copies_and_switches_of_a_parent(trained):
    x = torch.randn(6, 3, 8, 8)
    trained.keep_statistics = True
    parent = Parent(trained)
    for mode in (True, False, True):
        parent.train(mode)
        assert parent.projector[1].training is mode
        assert not parent.encoder.network.norm.training
    assert_kept(parent.encoder, x)
    teacher = copy.deepcopy(parent)
    assert teacher.encoder.keep_statistics
    assert_kept(teacher.train().encoder, x)
    mean = teacher.projector[1].running_mean.clone()
    teacher(x)
    assert not torch.equal(teacher.projector[1].running_mean, mean)


def test_kept_statistics_of_networks_of_timm():
    """Their batch norms may be subclasses with an activation inside."""
    encoder = create_encoder("test_efficientnet", image_size=64)
    encoder.keep_statistics = True
    assert_kept(encoder.train(), torch.randn(3, 3, 64, 64))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        # timm drops arguments without a value, and `smi export` writes all into a script
        ({"x=__import__('os').abort(), y": None}, "is not a setting: it is not a name"),
        ({"checkpoint_path": "/elsewhere.pth"}, "name weights to start from by --init"),
        ({"pretrained_cfg": {"file": "/elsewhere.pth"}}, "name weights to start from by --init"),
        ({"layers": [10**9] * 4}, "is too large"),
        ({"channels": [65_536] * 4}, "more than this machine can hold"),
        ({"channels": "x"}, "failed"),
    ],
)
def test_arguments_that_a_file_must_not_have(arguments, sentence):
    with pytest.raises(UserError, match=sentence):
        create_encoder("resnet-small", image_size=8, **arguments)
