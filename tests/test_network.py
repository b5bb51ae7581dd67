"""No network is touched at import and in training."""

import subprocess
import sys

import pytest

from support.digits import environment

REFUSE = """
import socket
def refuse(*words, **options):
    raise RuntimeError(f"the network was asked for: {words}")
socket.socket.connect = socket.socket.connect_ex = socket.socket.sendto = refuse
socket.getaddrinfo = socket.gethostbyname = socket.create_connection = refuse
"""
IMPORTS = """
import importlib, pkgutil, smi
for module in pkgutil.walk_packages(smi.__path__, "smi."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
"""
SHORT_PATH = """
import sys, smi
settings = {"encoder": "support.homemade.Net", "steps": 5, "method.widths": [8, 8]}
settings |= {"data.images": 320}
run = smi.pretrain("digits", out=sys.argv[1], overrides=settings)
smi.evaluate(run, protocols=["knn"])
smi.report([run], out=sys.argv[1] + ".html")
"""


IMPORTED = "every module is imported"


@pytest.fixture(scope="module")
def refused(tmp_path_factory) -> "subprocess.CompletedProcess[str]":
    """Import every module and go the short path in a process that refuses every connection."""
    code = f"{REFUSE}{IMPORTS}print({IMPORTED!r}, flush=True){SHORT_PATH}"
    return subprocess.run(
        [sys.executable, "-c", code, str(tmp_path_factory.mktemp("refused") / "run")],
        env={key: value for key, value in environment().items() if key != "HF_HUB_OFFLINE"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_importing_every_module_touches_no_network(refused):
    assert refused.stdout.startswith(IMPORTED), refused.stderr


def test_training_evaluating_and_reporting_touch_no_network(refused):
    assert refused.returncode == 0, refused.stderr
