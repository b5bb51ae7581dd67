"""No network is touched at import and in training."""

import subprocess
import sys

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
settings = {"encoder": "support.homemade.Net", "epochs": 1, "method.widths": [8, 8]}
run = smi.pretrain("digits", out=sys.argv[1], overrides=settings)
smi.evaluate(run, protocols=["knn"])
smi.report([run], out=sys.argv[1] + ".html")
"""


def run_refused(code: str, *words: str) -> None:
    """Run code in a process that refuses every connection."""
    ran = subprocess.run(
        [sys.executable, "-c", REFUSE + code, *words],
        env={key: value for key, value in environment().items() if key != "HF_HUB_OFFLINE"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr


def test_importing_every_module_touches_no_network():
    run_refused(IMPORTS)


def test_training_evaluating_and_reporting_touch_no_network(tmp_path):
    run_refused(SHORT_PATH, str(tmp_path / "run"))
