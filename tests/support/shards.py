"""Write small images and tar files."""

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path

import torch
from PIL import Image


def jpeg(seed: int, kind: str = "JPEG") -> bytes:
    """Return the bytes of a small image; each seed gives another one."""
    pixels = torch.randint(256, (20, 24, 3), generator=torch.Generator().manual_seed(seed))
    file = io.BytesIO()
    Image.fromarray(pixels.byte().numpy()).save(file, kind)
    return file.getvalue()


def write_tar(path: Path, members: Iterable[tuple[str, bytes]]) -> None:
    """Write a tar file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
