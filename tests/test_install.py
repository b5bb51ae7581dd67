"""Check what is built, which versions are allowed, and that files about them agree."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = SETTINGS["project"]


@pytest.fixture
def build(tmp_path):
    """`build("wheel", CXX=…)`: build a copy of the views, as pip does, and return the file."""
    try:
        newest = int(version("setuptools").partition(".")[0])
    except PackageNotFoundError:
        newest = 0
    if newest < 77:
        pytest.skip("setuptools 77 or newer is not installed")
    source = tmp_path / "source"
    shutil.copytree(ROOT / "src" / "smi" / "views", source / "src" / "smi" / "views")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "src/smi/__init__.py"):
        shutil.copy(ROOT / name, source / name)

    def run(kind: str, **variables: str) -> Path:
        code = f"import setuptools.build_meta as b; b.build_{kind}({str(tmp_path)!r})"
        environment = os.environ | variables
        command = [sys.executable, "-c", code]
        subprocess.run(command, cwd=source, env=environment, capture_output=True, check=True)
        (wheel,) = tmp_path.glob("*.whl")
        return wheel

    return run


def compiled_files(wheel: Path) -> list[str]:
    return [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")]


def fake_compiler(path: Path, script: str) -> str:
    """Write a compiler that does not take seconds; the last of its arguments is its output."""
    path.write_text(f'#!/bin/sh\nfor last; do :; done\necho library > "$last"\n{script}\n')
    path.chmod(0o755)
    return str(path)


@pytest.mark.skipif(os.name == "nt", reason="wheels for Windows have no compiled kernel")
def test_a_wheel_with_a_compiled_kernel_names_its_platform_only(build, tmp_path):
    from smi.views.compiler import library_name

    stale = tmp_path / "source" / "build" / "lib" / "smi" / "views" / "kernel-stale-any.so"
    stale.parent.mkdir(parents=True)
    stale.touch()
    wheel = build("wheel", CXX=fake_compiler(tmp_path / "compiler", ""))
    assert wheel.name.startswith("smi_ssl-")
    assert "-py3-none-" in wheel.name
    assert not wheel.name.endswith("-any.whl")
    processors = {name.rpartition("-")[2] for name in compiled_files(wheel)}
    assert processors in ({"any.so"}, {"any.so", "avx2.so"})
    assert f"smi/views/{library_name('any')}" in compiled_files(wheel)
    assert not any("stale" in name for name in compiled_files(wheel))


@pytest.mark.parametrize("compiler", ["missing", "broken"])
def test_without_a_compiler_a_wheel_is_for_all_platforms(build, tmp_path, compiler):
    path = tmp_path / "compiler"
    wheel = build(
        "wheel", CXX="missing" if compiler == "missing" else fake_compiler(path, "exit 1")
    )
    assert wheel.name.endswith("-py3-none-any.whl")
    assert compiled_files(wheel) == []
    assert "smi/views/kernel.cpp" in zipfile.ZipFile(wheel).namelist()


def test_an_editable_install_has_no_compiled_kernel(build, tmp_path):
    """It would not follow edits of kernel.cpp."""
    wheel = build("editable", CXX=fake_compiler(tmp_path / "compiler", ""))
    assert "-py3-none-any" in wheel.name
    assert not list((tmp_path / "source").rglob("kernel-*.so"))


def test_the_sdist_holds_what_git_holds():
    """It can be tested, so it needs the pages and results that the tests read."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a clone")
    command = ["git", "ls-files"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    manifest = (ROOT / "MANIFEST.in").read_text(encoding="utf-8").split()
    always = {"src", "pyproject.toml", "setup.py", "README.md", "LICENSE", "MANIFEST.in"}
    left_out = {".ci", ".gitignore"}
    assert {line.partition("/")[0] for line in listed.splitlines()} <= always | left_out | {
        *manifest
    }


def test_the_oldest_versions_are_the_lower_bounds():
    command = [sys.executable, ".github/oldest.py"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    oldest = printed.split()
    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    bounds = {requirement for group in groups for requirement in group}
    assert {line.replace("==", ">=") for line in oldest} == {
        bound.partition(",")[0] for bound in bounds
    }
    assert all(re.fullmatch(r"[\w-]+==\d[\d.]*", line) for line in oldest)


def test_the_conda_recipe_has_the_names_and_bounds_of_the_project():
    import smi

    recipe = yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text(encoding="utf-8"))
    assert recipe["package"] == {"name": PROJECT["name"], "version": smi.__version__}
    python = f"python {PROJECT['requires-python']}"
    run = [re.sub(r"^torch>", "pytorch>", line) for line in PROJECT["dependencies"]]
    assert recipe["requirements"]["run"] == [python, *(line.replace(">", " >", 1) for line in run)]
    (setuptools,) = SETTINGS["build-system"]["requires"]
    assert recipe["requirements"]["host"] == [python, "pip", setuptools.replace(">", " >", 1)]
    assert recipe["about"]["license"] == PROJECT["license"]


WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_names_files_and_versions_that_exist(path):
    text = path.read_text(encoding="utf-8")
    workflow = yaml.safe_load(text)
    assert workflow["permissions"] == {"contents": "read"}  # jobs ask for more where they need it
    assert "concurrency" in workflow
    oldest = PROJECT["requires-python"].removeprefix(">=")
    pythons = set(re.findall(r'"(3\.\d+)"', text))
    assert oldest in pythons
    assert min(pythons, key=lambda name: int(name.partition(".")[2])) == oldest
    targets = re.findall(
        r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
    )
    for job in workflow["jobs"].values():
        assert "timeout-minutes" in job
        for step in job["steps"]:
            if "uses" in step:
                assert re.fullmatch(r"[\w./-]+@(v\d+|release/v\d+)", step["uses"]), step["uses"]
            command = step.get("run", "")
            assert set(re.findall(r"\bmake (\w+)", command)) <= {*targets}
            for name in re.findall(r"python (\.?[\w/]+\.py)", command):
                assert (ROOT / name).is_file(), name
    triggers = workflow[True]  # YAML reads `on` as true
    for pattern in (triggers["pull_request"] or {}).get("paths", []):
        assert list(ROOT.glob(pattern)), pattern


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actionlint_finds_nothing(path):
    actionlint = shutil.which("actionlint")
    if actionlint is None:
        pytest.skip("actionlint is not installed")
    ran = subprocess.run([actionlint, str(path)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout
