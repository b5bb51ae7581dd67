"""Write the packages of constraints.txt as a CycloneDX software bill of materials.

    python campaign/sbom.py            sbom.json
    python campaign/sbom.py --check    fail if sbom.json is not what would be written

Names and versions are those of constraints.txt. Licences and dependencies are read from the
packages that are installed in this environment; one of another version, or one that is not
installed here (such as NVIDIA's on a machine without a GPU), is listed without them. The file holds
no date and no machine, so that it changes only with the versions.
"""

import argparse
import json
import re
import sys
import uuid
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import quote

ROOT = Path(__file__).parent.parent
NAMESPACE = uuid.UUID("f3a1c9a2-6f0b-5d0e-9a4e-2f1b7c8d6e50")


def normal(name: str) -> str:
    """Return the normal form of a package's name."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned(text: str) -> dict[str, str]:
    """Return the versions that constraints.txt pins, by normal name."""
    pairs = (line.split("==") for line in text.splitlines() if "==" in line)
    return {normal(name): version.strip() for name, version in pairs}


def purl(name: str, version: str) -> str:
    """Return the package URL of a Python package."""
    return f"pkg:pypi/{name}@{quote(version, safe='.!+')}"


def component(name: str, version: str, installed: Distribution | None) -> dict:
    """Describe a package."""
    described = {
        "type": "library",
        "bom-ref": purl(name, version),
        "name": name,
        "version": version,
        "purl": purl(name, version),
    }
    if installed is not None and (licence := licence_of(installed)):
        described["licenses"] = [licence]
    return described


def licence_of(installed: Distribution) -> dict | None:
    """Return the licence that a package declares, as an SPDX expression or by name."""
    about = installed.metadata
    if expression := about.get("License-Expression"):
        return {"expression": expression}
    classified = [
        line.rpartition(" :: ")[2]
        for line in about.get_all("Classifier") or []
        if line.startswith("License :: ") and line != "License :: OSI Approved"
    ]
    name = classified[0] if classified else (about.get("License") or "").strip().partition("\n")[0]
    return {"license": {"name": name[:100]}} if name else None


def needs(installed: Distribution, versions: dict[str, str]) -> list[str]:
    """Return the package URLs of what a package needs, of those that are pinned."""
    required = [line for line in installed.requires or [] if "extra ==" not in line]
    names = {normal(re.match(r"[\w.-]+", line)[0]) for line in required}
    return sorted(purl(name, versions[name]) for name in names if name in versions)


def find(name: str, version: str) -> Distribution | None:
    """Return an installed package, if it is of this version."""
    try:
        installed = distribution(name)
    except PackageNotFoundError:
        return None
    return installed if installed.version.partition("+")[0] == version else None


def make() -> dict:
    """Return the bill of materials of constraints.txt."""
    import smi

    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    versions = pinned(constraints)
    found = {name: find(name, version) for name, version in versions.items()}
    own = purl("smi-ssl", smi.__version__)
    root = {
        "type": "library",
        "bom-ref": own,
        "name": "smi-ssl",
        "version": smi.__version__,
        "purl": own,
        "licenses": [{"license": {"id": "MIT"}}],
    }
    dependencies = [{"ref": own, "dependsOn": sorted(map(purl, versions, versions.values()))}]
    dependencies += [
        {"ref": purl(name, versions[name]), "dependsOn": needs(installed, versions)}
        for name, installed in sorted(found.items())
        if installed is not None
    ]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(NAMESPACE, own + constraints)}",
        "version": 1,
        "metadata": {"component": root},
        "components": [component(name, versions[name], found[name]) for name in sorted(versions)],
        "dependencies": dependencies,
    }


def main() -> None:
    """Write sbom.json, or compare it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--out", type=Path, default=ROOT / "sbom.json")
    arguments = parser.parse_args()
    text = json.dumps(make(), indent=1, ensure_ascii=False) + "\n"
    if not arguments.check:
        arguments.out.write_text(text, encoding="utf-8")
    elif arguments.out.read_text(encoding="utf-8") != text:
        sys.exit(f"{arguments.out} is not what is installed here: run `make sbom`")


if __name__ == "__main__":
    main()
