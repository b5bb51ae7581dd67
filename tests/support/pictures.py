"""Provide image files for tests."""

import struct
import zlib
from collections.abc import Callable
from pathlib import Path

Draw = Callable[..., Path]


def enormous(path: Path) -> Path:
    """Write a PNG of a few bytes that claims to hold 3,600 megapixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0))
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    )
    return path
