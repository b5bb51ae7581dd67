"""Build the site: collect its pages in one folder, then let Sphinx turn them into HTML.

python docs/site/build.py          # `make site`: into site/, without a network
python docs/site/build.py FOLDER   # into another folder

The pages of docs/ stay as GitHub shows them. Beside them stand pages that are made here from
README.md, CHANGELOG.md, the methods, the public names, the examples and the notebooks. A new page
in docs/ appears by itself. Warnings are errors.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import api_pages
import method_pages
import notebook_pages
from places import ROOT, repository

OUT = ROOT / "site"
DOCS = ROOT / "docs"
# Files outside docs/ that are pages of the site, too.
PAGES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
README_PAGE = "quick-start.md"
# The sections of README.md that make up its page, and those on the home page. "Results" and
# "Documentation" have pages of their own.
README_SECTIONS = ("Install", "Quick start", "Use only the loss", "Commands")
HOME_SECTIONS = ("Methods", "Citation")
README_ANCHORS = {"results": "results.md", "documentation": "index.md"}
README_ANCHORS |= {"methods": "index.md#methods", "citation": "index.md#citation"}
GUIDES = ("photographs", "only-the-loss", "worth-it", "fair-comparison", "eight-gpus", "collapse")
# The other pages of docs/, in the order of the sidebar; pages that are not named here follow.
USE = ("install", "pretraining", "adapting", "data", "views", "evaluation", "classify")
USE += ("comparison", "report", "scaling", "first-gpu-run", "works-with")
EVIDENCE = ("results", "zoo", "benchmarks", "reliability", "log")
PROJECT = ("architecture", "security", "supply-chain")
LINK = re.compile(r"(\]\()([^)\s]+)(\))")


def main() -> None:
    out = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else OUT
    if (out / "objects.inv").exists():  # an earlier site, whose pages may be gone
        shutil.rmtree(out)
    with tempfile.TemporaryDirectory() as temporary:
        pages = Path(temporary) / "pages"
        collect(pages)
        command = [sys.executable, "-m", "sphinx", "-b", "html", "-W", "--keep-going", "-q", "-E"]
        command += ["-c", str(Path(__file__).parent), "-d", str(Path(temporary) / "state")]
        code = subprocess.run([*command, str(pages), str(out)], check=False).returncode
    if code == 0:
        print(f"{os.path.relpath(out)}/index.html")
    sys.exit(code)


def collect(folder: Path) -> None:
    """Write the source of every page into a folder."""
    folder.mkdir(parents=True)
    for path in sorted(DOCS.rglob("*")):
        relative = path.relative_to(DOCS)
        if relative.parts[0] == "site":
            continue
        if path.suffix == ".md":
            write(folder / relative, with_links(path.read_text(encoding="utf-8"), path, relative))
        elif path.suffix in (".png", ".svg"):
            (folder / relative).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, folder / relative)
    for name, page in PAGES.items():
        write(folder / page, page_of(name, (ROOT / name).read_text(encoding="utf-8"), page))
    sections = readme_sections()
    quick_start = "# Quick start\n\n" + "".join(sections[name] for name in README_SECTIONS)
    write(folder / README_PAGE, page_of("README.md", quick_start, README_PAGE))
    made = method_pages.write_pages(folder / "methods")
    api = api_pages.write_pages(folder / "api")
    examples = notebook_pages.write_pages(folder)
    write(folder / "gallery.md", gallery())
    home = sections[""] + "".join(sections[name] for name in HOME_SECTIONS)
    toctrees = contents(sorted(path.stem for path in DOCS.glob("*.md")), made, api, examples)
    write(folder / "index.md", page_of("README.md", home, "index.md") + toctrees)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def readme_sections() -> dict[str, str]:
    """Return the parts of README.md by their headings; "" is the part before the first."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    head, *parts = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    return {"": head} | {part.partition("\n")[0].removeprefix("## "): part for part in parts}


def page_of(name: str, text: str, page: str) -> str:
    """Return the text of a file of the root as a page of the site."""
    return with_links(text, ROOT / name, Path(page))


def with_links(text: str, path: Path, page: Path) -> str:
    """Let the links of a file lead to pages of the site, or else to the repository.

    path: where the file stands. page: where its page stands, in the folder of the pages.
    """

    def renewed(match: re.Match[str]) -> str:
        target, _, anchor = match[2].partition("#")
        if target.startswith(("http://", "https://", "mailto:")):
            return match[0]
        if not target and path != ROOT / "README.md":
            return match[0]
        linked = (path.parent / target).resolve() if target else path
        place = place_of(linked, anchor)
        if not place.startswith("https://"):
            place = os.path.relpath(place, page.parent)
        return match[1] + place + match[3]

    return LINK.sub(renewed, text)


def place_of(linked: Path, anchor: str) -> str:
    """Return where the site has a file of the repository; the address of its own is the last."""
    end = f"#{anchor}" if anchor else ""
    name = linked.relative_to(ROOT).as_posix()
    if linked.is_relative_to(DOCS) and linked.suffix in (".md", ".png", ".svg"):
        return linked.relative_to(DOCS).as_posix() + end
    if name == "README.md":
        return README_ANCHORS.get(anchor, (README_PAGE if anchor else "index.md") + end)
    if name in PAGES:
        return PAGES[name] + end
    if page := notebook_pages.page_of(linked):
        return page
    kind = "tree" if linked.is_dir() else "blob"
    return f"{repository()}/{kind}/main/{name}{end}"


def gallery() -> str:
    """Return a page with every picture of the pages, and the page that explains it."""
    parts = ["# Gallery\n\nEvery figure of these pages. Its page says how it was made.\n"]
    for path in [*sorted(DOCS.glob("*.md")), ROOT / "README.md"]:
        text = path.read_text(encoding="utf-8")
        for title, target in re.findall(r"!\[([^\]]*)\]\(([^)\s]+)\)", text):
            picture = (path.parent / target).name
            if not any(f"]({picture})" in part for part in parts):
                page = README_PAGE if path.name == "README.md" else path.name
                heading = text.partition("\n")[0].removeprefix("# ")
                parts.append(f"## {short(title)}\n\n![{title}]({picture})\n\n[{heading}]({page})\n")
    return "\n".join(parts)


def short(title: str) -> str:
    """Return the first sentence of a description."""
    return re.split(r"[.:](?= |$)", title)[0]


def contents(pages: list[str], methods: list[str], api: list[str], examples: list[str]) -> str:
    """Return the sidebar, as toctrees that the home page does not show."""
    guides = [*GUIDES, *sorted({p.stem for p in (DOCS / "guides").glob("*.md")} - {*GUIDES})]
    method = ["method", "methods", *methods]
    named = {*USE, *EVIDENCE, *PROJECT, *method}
    groups = {
        "Start": ["quick-start", *examples],
        "Guides": [f"guides/{name}" for name in guides],
        "Use": [*(name for name in USE if name in pages), *(p for p in pages if p not in named)],
        "Methods": method,
        "Reference": api,
        "Evidence": [*(name for name in EVIDENCE if name in pages), "gallery"],
        "Project": [*(name for name in PROJECT if name in pages), "contributing", "changelog"],
    }
    return "".join(
        f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n" + "\n".join(entries) + "\n```\n"
        for caption, entries in groups.items()
    )


if __name__ == "__main__":
    main()
