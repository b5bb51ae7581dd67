"""Hold the labels of images, and write them as CSV or JSON."""

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from smi.errors import UserError
from smi.files import disk_errors, write_json, write_text
from smi.tables import name_in_csv
from smi.terminal import counted, printable

NUM_DECIMALS = 6


@dataclass(frozen=True)
class Prediction:
    """Hold the most probable label of an image, and the second."""

    file: str
    label: str
    confidence: float  # a probability
    second_label: str
    second_confidence: float


@dataclass(frozen=True)
class Predictions:
    """Hold the predictions for all images, in order. path: the file they were written to."""

    rows: Sequence[Prediction]
    path: Path | None = None

    def csv(self) -> str:
        """Return a header and one line per image; no cell can be taken for a formula."""
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Prediction.__dataclass_fields__)
        for row in self.rows:
            writer.writerow(
                [
                    name_in_csv(row.file),
                    name_in_csv(row.label),
                    f"{row.confidence:.{NUM_DECIMALS}f}",
                    name_in_csv(row.second_label),
                    f"{row.second_confidence:.{NUM_DECIMALS}f}",
                ]
            )
        return file.getvalue()

    def text(self) -> str:
        """Return the CSV, or a sentence if it is in a file."""
        if self.path is None:
            return self.csv().rstrip("\n")
        images = counted(len(self.rows), "image")
        return f"{printable(str(self.path))}: labels of {images}"

    def plain(self) -> list[dict[str, Any]]:
        """Return one dictionary per image, ready for JSON."""
        return [
            asdict(row)
            | {
                "confidence": round(row.confidence, NUM_DECIMALS),
                "second_confidence": round(row.second_confidence, NUM_DECIMALS),
            }
            for row in self.rows
        ]

    def write(self, path: Path) -> "Predictions":
        """Write FILE.csv or FILE.json, whole or not at all."""
        with disk_errors(f"writing {path}"):
            if path.suffix.lower() == ".json":
                write_json(path, self.plain())
            else:
                write_text(path, self.csv())
        return Predictions(self.rows, path)


def check_labels_path(path: Path) -> None:
    """Raise a UserError before the long computation if predictions cannot be written there."""
    if path.suffix.lower() not in (".csv", ".json"):
        raise UserError(
            "labels are written as .csv or .json, so --out must end in one of these, not "
            f"{printable(path.name)!r}; to train a classifier, give labelled images with --data"
        )
    if not path.parent.is_dir():
        raise UserError(f"there is no folder {path.parent}: create it, or choose another --out")
    if path.is_dir():
        raise UserError(f"{path} is a folder: choose another --out")
