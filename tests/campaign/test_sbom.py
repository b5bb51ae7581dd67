"""Check the bill of materials: its structure, and that it names what constraints.txt pins."""

import importlib
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def sbom(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "campaign")
    return importlib.import_module("sbom")


@pytest.fixture(params=["committed", "made"])
def bill(request, sbom):
    return (
        json.loads((ROOT / "sbom.json").read_text())
        if request.param == "committed"
        else (sbom.make())
    )


def test_it_names_what_is_pinned(bill, sbom):
    versions = sbom.pinned((ROOT / "constraints.txt").read_text())
    assert len(versions) > 100
    assert {part["name"]: part["version"] for part in bill["components"]} == versions


def test_it_has_the_structure_of_cyclonedx(bill):
    assert bill["bomFormat"] == "CycloneDX"
    assert bill["specVersion"] == "1.6"
    assert bill["version"] == 1
    assert re.fullmatch(r"urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", bill["serialNumber"])
    parts = [bill["metadata"]["component"], *bill["components"]]
    references = [part["bom-ref"] for part in parts]
    assert len(set(references)) == len(references)
    for part in parts:
        assert part["type"] == "library"
        assert part["purl"] == f"pkg:pypi/{part['name']}@{part['version']}"
        for licence in part.get("licenses", []):
            assert licence.get("expression") or licence["license"].get("name", "MIT")
    for entry in bill["dependencies"]:
        assert entry["ref"] in references
        assert set(entry["dependsOn"]) <= set(references)


def test_every_dependency_is_bounded_and_pinned(sbom):
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    versions = sbom.pinned((ROOT / "constraints.txt").read_text())
    extras = project["optional-dependencies"]
    for line in (*project["dependencies"], *(line for lines in extras.values() for line in lines)):
        assert re.search(r">=[\d.]+,<\d", line), f"{line} has no bounds"
    for line in (*project["dependencies"], *extras["dev"]):
        name = sbom.normal(re.match(r"[\w.-]+", line)[0])
        assert name in versions, f"{name} is not pinned"
