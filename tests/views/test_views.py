import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from smi.data import Batches, Pictures, load
from smi.views import RECIPES, Policy, View, Views, compiled, compiler, policy
from support.cases import pictures


@pytest.mark.parametrize("name", [*RECIPES, "cifar10-multicrop", "cifar10-jigsaw"])
def test_every_policy_gives_its_views(name):
    chosen = policy(name)
    views = Views(chosen)(pictures(3, 32, 32), torch.Generator().manual_seed(0))
    sizes = [view.size for view in chosen.views for _ in range(view.grid**2)]
    assert [list(x.shape) for x in views] == [[3, 3, size, size] for size in sizes]
    for x in views:
        assert x.dtype == torch.float32
        assert x.isfinite().all()
        assert x.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("flag", [None, False])
@pytest.mark.parametrize("name", ["imagenette", "cifar10-multicrop", "cifar10-jigsaw"])
def test_buffers_are_filled_with_the_same_views(flag, name):
    chosen = policy(name, size=32)
    views = Views(chosen, compiled=flag)
    images = Pictures.join([pictures(1, *shape)[0] for shape in [(40, 48), (40, 40), (64, 40)]])
    expected = views(images, torch.Generator().manual_seed(1))
    floats = views.buffers(3)
    views.fill(floats, images, torch.Generator().manual_seed(1))
    assert all(torch.equal(a, b) for a, b in zip(floats, expected, strict=True))
    levels = views.buffers(3, torch.uint8)
    views.fill(levels, images, torch.Generator().manual_seed(1))
    std = torch.tensor(chosen.std)[:, None, None]
    for pixels, x, y in zip(levels, views.normalise(levels), expected, strict=True):
        assert pixels.dtype == torch.uint8
        assert pixels.is_contiguous(memory_format=torch.channels_last)
        assert x.is_contiguous(memory_format=torch.channels_last)
        assert ((x - y) * std * 255).abs().max() < 0.501  # rounded to whole grey levels


def test_a_kernel_is_reported():
    assert not Views(policy("cifar10"), compiled=False).has_kernel
    views = Views(policy("cifar10"))
    assert views.has_kernel == (views.backend == "compiled")


def test_normalising_needs_no_value_from_the_device():
    from torch._subclasses import FakeTensorMode

    views = Views(policy("cifar10"), compiled=False)
    with FakeTensorMode(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("smi.views.normalisation.upload", lambda tensor, device: tensor.to(device))
        pixels = torch.empty(4, 3, 8, 8, dtype=torch.uint8, device="cuda")
        (x,) = views.normalise([pixels])
        assert (x.device.type, x.dtype) == ("cuda", torch.float32)
        assert x.is_contiguous(memory_format=torch.channels_last)


def test_a_batch_from_the_store_always_gives_the_same_views():
    batches = Batches(load("digits"), 8, seed=0)
    views = Views(policy("digits"))
    first, again, other = (
        views(batches.batch(step).images, batches.batch(step).generator()) for step in (3, 3, 4)
    )
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])
    assert not torch.equal(first[0], first[1])


def test_views_are_normalised():
    plain = View(16, scale=(1.0, 1.0), ratio=(1.0, 1.0), flip_p=0, jitter_p=0, gray_p=0, blur_p=0)
    images = pictures(4, 16, 16)
    for flag in (None, False):
        (x,) = Views(Policy("plain", (plain,), (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)), compiled=flag)(
            images, torch.Generator()
        )
        expected = (images / 255 - torch.tensor([0.1, 0.2, 0.3])[:, None, None]) / torch.tensor(
            [0.5, 0.6, 0.7]
        )[:, None, None]
        assert torch.allclose(x, expected, atol=1e-5)


@pytest.mark.parametrize(
    "images",
    [
        torch.zeros(2, 3, 8, 8),
        torch.zeros(3, 8, 8, dtype=torch.uint8),
        torch.zeros(2, 1, 8, 8, dtype=torch.uint8),
    ],
)
def test_images_must_be_a_uint8_batch(images):
    with pytest.raises(ValueError, match=r"images must be uint8 \[N, 3, H, W\], not"):
        Views(policy("cifar10"))(images, torch.Generator())


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Start without a kernel: in this process, in the cache and in the package."""
    monkeypatch.setenv("SMI_CACHE", str(tmp_path / "cache"))
    package = tmp_path / "package"
    package.mkdir()
    shutil.copy(compiler.SOURCE, package)
    monkeypatch.setattr(compiler, "SOURCE", package / "kernel.cpp")
    monkeypatch.setattr(compiled, "SOURCE", package / "kernel.cpp")
    compiled.find_kernel.cache_clear()
    yield monkeypatch
    compiled.find_kernel.cache_clear()


def test_without_a_compiler_everything_works(fresh, capsys):
    fresh.setenv("CXX", "no-such-compiler")
    views = Views(policy("cifar10"))
    assert views.backend == "torch"
    assert "no C++ compiler found" in capsys.readouterr().err
    assert len(views(pictures(2, 32, 32), torch.Generator())) == 2
    with pytest.raises(RuntimeError, match="could not be compiled"):
        Views(policy("cifar10"), compiled=True)


def test_a_compiler_that_fails(fresh, tmp_path, capsys):
    broken = tmp_path / "broken"
    broken.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && exit 0\n'
        "echo 'fatal error: it is broken' >&2\nexit 1\n"
    )
    broken.chmod(0o755)
    fresh.setenv("CXX", str(broken))
    assert Views(policy("cifar10")).backend == "torch"
    assert "it is broken" in capsys.readouterr().err
    assert list((tmp_path / "cache" / "kernels").iterdir()) == []


def test_compiled_once_and_found_again(fresh, tmp_path):
    if Views(policy("cifar10")).backend == "torch":
        pytest.skip("no C++ compiler")
    (library,) = (tmp_path / "cache" / "kernels").iterdir()
    compiled.find_kernel.cache_clear()

    def never(*_):
        raise AssertionError("compiled again")

    fresh.setattr(compiled, "compile_kernel", never)
    assert Views(policy("cifar10")).backend == "compiled"
    assert list(library.parent.iterdir()) == [library]


def test_a_damaged_kernel_is_compiled_again(fresh):
    fresh.delenv("CXX", raising=False)
    found = compiler.find_compiler()
    if found is None:
        pytest.skip("no C++ compiler")
    library = compiled._build(found)  # it is not loaded yet
    content = library.read_bytes()
    library.write_bytes(content[:100])
    assert compiled.find_kernel() is not None
    assert len(library.read_bytes()) == len(content)


def test_a_cache_that_cannot_be_written(fresh, tmp_path):
    (tmp_path / "file").touch()
    fresh.setenv("SMI_CACHE", str(tmp_path / "file"))
    fresh.setattr(compiled.tempfile, "tempdir", str(tmp_path))
    has_compiler = compiler.find_compiler() is not None
    assert (Views(policy("cifar10")).backend == "compiled") == has_compiler


def test_compiled_false_needs_no_compiler(fresh):
    fresh.setattr(compiled, "_build", None)
    assert Views(policy("cifar10"), compiled=False).backend == "torch"


@pytest.mark.parametrize(
    ("capability", "processor"),
    [("DEFAULT", "any"), ("NO AVX", "any"), ("AVX2", "avx2"), ("AVX512", "avx2")],
)
def test_the_kernel_of_a_wheel_suits_the_processor(fresh, tmp_path, capability, processor):
    fresh.setenv("CXX", "no-such-compiler")
    fresh.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    library = tmp_path / "package" / compiler.library_name(processor)
    tiny_kernel(library)
    assert compiled.wheel_library() == library
    assert Views(policy("cifar10")).backend == "compiled"


def test_the_kernel_of_another_source_is_not_used(fresh, tmp_path):
    fresh.setenv("CXX", "no-such-compiler")
    tiny_kernel(compiled.wheel_library())
    with (tmp_path / "package" / "kernel.cpp").open("a") as source:
        source.write("// edited")
    assert Views(policy("cifar10")).backend == "torch"


def test_a_damaged_kernel_of_a_wheel_is_not_used(fresh):
    fresh.setenv("CXX", "no-such-compiler")
    compiled.wheel_library().write_bytes(b"damaged")
    assert Views(policy("cifar10")).backend == "torch"


def tiny_kernel(library: Path) -> None:
    """Write a library that can be loaded; the real one takes seconds to compile."""
    found = shutil.which("c++")
    if found is None:
        pytest.skip("no C++ compiler")
    function = 'extern "C" int smi_make_views() { return 0; }'
    command = [found, "-shared", "-fPIC", "-x", "c++", "-", "-o", str(library)]
    subprocess.run(command, input=function, text=True, check=True)
