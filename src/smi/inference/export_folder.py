"""Create the folder of an export, whole or not at all."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from smi.errors import UserError
from smi.evaluation.results import RESULTS_FOLDER
from smi.files import disk_errors, exchange, make_folder, sync, sync_below, temporary_folder
from smi.inference.export_network import FORMATS, SCRIPT
from smi.nn.weights import HUB_CONFIG

PREPROCESSING = "preprocessing.json"
CARD, RESULTS, RECIPE = "README.md", "evaluation.json", "recipe.yaml"  # beside those of the hub
HUB_EXPORT = {
    FORMATS["hf-hub"].file,
    PREPROCESSING,
    SCRIPT,
    HUB_CONFIG,
    CARD,
    RESULTS,
    RECIPE,
}
EXPORTED_FILES = {
    *HUB_EXPORT,
    "model.onnx.data",
    "__pycache__",
    *(form.file for form in FORMATS.values()),
}


def default_folder(source: Path, to: str) -> Path:
    """Return export/FORMAT in the folder of a run, or export-FORMAT beside a file.

    For an encoder of timm it is NAME-export/FORMAT in the working directory.
    """
    if source.is_dir():
        return source / "export" / to
    if not source.is_file():
        return Path(f"{source.name}-export") / to
    folder = source.parent
    if (folder / PREPROCESSING).is_file():
        # An encoder that was exported: beside its folder, which may be replaced as a whole.
        return folder.resolve().with_name(f"export-{to}")
    return folder / f"export-{to}"


@contextlib.contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder that gets its name if the block succeeds.

    After an error nothing is left of it, and an older export is still in place.
    """
    place = folder.resolve()
    _check_replaceable(place, folder)
    missing = [parent for parent in place.parents if not parent.exists()]
    try:
        with contextlib.ExitStack() as stack:
            with disk_errors(f"creating {folder}"):
                make_folder(place.parent)
                temporary = temporary_folder(place.parent, f".{place.name}-")
                partial = stack.enter_context(temporary)
                partial.chmod(0o755)  # readable by others, which a temporary folder is not
            yield partial
            with disk_errors(f"writing {folder}"):
                _replace(place, partial)
    except BaseException:
        for parent in missing:
            with contextlib.suppress(OSError):
                parent.rmdir()
        raise


def _check_replaceable(place: Path, folder: Path) -> None:
    """Raise a UserError if the folder holds anything but an export."""
    if not place.exists():
        return
    if not place.is_dir():
        raise UserError(f"{folder} is a file: choose another --out")
    if Path.cwd().is_relative_to(place):
        raise UserError(
            f"{folder} is or holds the working directory, which is not replaced: choose another "
            "--out"
        )
    names = {path.name for path in place.iterdir()}
    if names and PREPROCESSING not in names:
        raise UserError(f"{folder} exists and is not an export: choose another --out")
    if foreign := sorted(names - EXPORTED_FILES - {RESULTS_FOLDER}):
        raise UserError(
            f"{folder} would be replaced, but it holds {foreign[0]}, which is not part of an "
            "export: move that file or choose another --out"
        )


def _replace(place: Path, partial: Path) -> None:
    """Move the new folder into place, and keep the results of evaluations."""
    if (place / RESULTS_FOLDER).is_dir():
        # Each result names its weights, so old ones do no harm.
        shutil.copytree(place / RESULTS_FOLDER, partial / RESULTS_FOLDER)
    sync_below(partial)
    if not place.exists():
        partial.rename(place)
    elif not exchange(partial, place):
        _replace_in_steps(place, partial)
    sync(place.parent)


def _replace_in_steps(place: Path, partial: Path) -> None:
    """Move the new folder into place where a system cannot exchange two folders."""
    old = partial / "old"
    new = partial / "new"
    new.mkdir()
    for path in list(partial.iterdir()):
        if path != new:
            path.rename(new / path.name)
    # Beside the partial folder, which the next command removes if this one is killed.
    aside = place.with_name(f"{place.name}.old")
    os.rename(place, aside)
    try:
        new.rename(place)
    except BaseException:
        os.rename(aside, place)
        raise
    os.rename(aside, old)
