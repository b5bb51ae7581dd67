import pytest
import torch
from torch import nn

from smi.errors import UserError
from smi.nn import Encoder, create_encoder


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
        ("xyzzy", {}, "there is no encoder 'xyzzy': `smi encoders` lists some"),
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
