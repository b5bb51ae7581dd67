import os
import shutil
import socket
import subprocess
import sys

if "PYTEST_XDIST_WORKER" in os.environ:  # more threads than cores wait for one another
    os.environ.setdefault("OMP_NUM_THREADS", "1")
# Weights that this machine has downloaded must not change a test, and none is downloaded.
os.environ["HF_HUB_CACHE"] = os.path.join(os.path.dirname(__file__), "no-weights")
os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
from hypothesis import settings

from smi import imports
from support.browser import wait_until

settings.register_profile("untimed", deadline=None)  # a busy machine is no error
settings.load_profile("untimed")

# The slowest files start first, so that no process works alone for long at the end.
LONGEST = (
    "test_campaign",
    "test_hostile",
    "test_elsewhere",
    "test_notebooks",
    "test_composes",
    "test_classify",
    "test_two_machines",
    "test_elastic",
    "test_two_processes",
    "test_compare",
    "test_averaging",
    "test_budget",
    "test_pretrain",
    "test_loop",
    "test_export",
    "test_configure",
    "test_docs",
    "test_notebooks",
    "test_site",
    "test_examples",
    "test_memory",
    "test_browser",
    "test_before_after",
    "test_evaluate",
    "test_report",
    "test_benchmarks",
    "test_demo",
    "test_cli",
    "test_reproduce",
    "test_step",
    "test_distributed",
    "test_pixels",
    "test_classify",
    "test_embed",
    "test_fake_cuda",
)


def pytest_addoption(parser):
    parser.addoption("--long", action="store_true", help="also run the tests of `make long`")


def pytest_collection_modifyitems(config, items):
    if not config.getoption("--long"):
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(pytest.mark.skip(reason="takes long: see `make long`"))
    items.sort(
        key=lambda item: (
            LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST)
        )
    )


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """Use one thread: tensors of tests are so small that threads only wait for each other."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _no_network():
    """Refuse connections of this process to other machines: no test needs one."""
    connect = socket.socket.connect

    def checked(self, address):
        if self.family in (socket.AF_INET, socket.AF_INET6):
            host = str(address[0])
            local = host.startswith("127.") or host in ("", "localhost", "::1", "0.0.0.0")
            if not local:
                raise RuntimeError(f"a test connects to {host}, which is another machine")
        return connect(self, address)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", checked)
        yield


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


OF_TESTS = ("support.homemade.Net", "torch.nn.Flatten")  # networks that test files name


@pytest.fixture(autouse=True)
def _own_trust(monkeypatch):
    """Forget after each test which code it let files name; that of a module's fixtures stays."""
    monkeypatch.setattr(imports, "_named", {*imports._named, *OF_TESTS})
    monkeypatch.setattr(imports, "_trusts_files", False)


@pytest.fixture
def views():
    """Correlated views in float64, as training sees them: `views(n, k, number=2)`."""

    def make(
        n: int, k: int, number: int = 2, dtype: torch.dtype = torch.float64
    ) -> list[torch.Tensor]:
        shared = torch.randn(n, k, dtype=torch.float64)
        return [
            (shared + 0.5 * torch.randn(n, k, dtype=torch.float64)).to(dtype).requires_grad_()
            for _ in range(number)
        ]

    return make


class OnMPS(torch.Tensor):
    """Apple's GPUs have no float64: what comes from one is refused it until it is on the CPU."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        found = super().__torch_function__(func, types, args, kwargs or {})
        if func is torch.Tensor.cpu:
            return found.as_subclass(torch.Tensor)
        if isinstance(found, torch.Tensor) and found.dtype == torch.float64:
            raise TypeError(
                "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support "
                "float64"
            )
        return found


@pytest.fixture
def on_mps():
    """`on_mps(x)`: a tensor that behaves as on such a device; so does what is computed from it."""
    return lambda x: x.as_subclass(OnMPS)


@pytest.fixture
def smi_here(monkeypatch, capsys):
    """`smi_here("pretrain", …)`: run a command in this process, which saves seconds each time."""

    def command(*words: object) -> subprocess.CompletedProcess[str]:
        from smi.cli import main

        monkeypatch.setattr(sys, "argv", ["smi", *map(str, words)])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        said, complained = capsys.readouterr()
        return subprocess.CompletedProcess(sys.argv, code, said, complained)

    return command


@pytest.fixture(scope="session")
def browser():
    """A real Chromium, driven by playwright; `browser.new_page()`."""
    sync_api = pytest.importorskip("playwright.sync_api")
    found = next(
        filter(
            None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))
        ),
        None,
    )
    if found is None:
        pytest.skip("no Chrome or Chromium here")
    with sync_api.sync_playwright() as driver:
        started = driver.chromium.launch(
            executable_path=found,
            args=["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else [],
        )
        yield started
        started.close()


@pytest.fixture
def page(browser):
    """A page of it that must not speak to any network, nor report an error."""
    context = browser.new_context(offline=True)
    context.set_default_timeout(180_000)  # a busy machine is no error
    opened, errors, requests = context.new_page(), [], []
    opened.on(
        "console",
        lambda message: (
            errors.append(message.text) if message.type in ("error", "warning") else None
        ),
    )
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.on(
        "request",
        lambda request: (
            requests.append(request.url)
            if not request.url.startswith(("file:", "data:", "blob:"))
            else None
        ),
    )
    yield opened
    context.close()
    assert errors == []
    assert requests == []


@pytest.fixture
def drawn(page):
    """`drawn()`: wait until all figures in sight, or nearly, are drawn at their present width."""
    return lambda: wait_until(page, DRAWN)


DRAWN = """
[...document.querySelectorAll('[data-plot]')]
  .filter(e => e.clientWidth && e.getBoundingClientRect().top < innerHeight + 600)
  .every(e => e.querySelector('.main-svg')?.clientWidth === e.clientWidth)
"""
