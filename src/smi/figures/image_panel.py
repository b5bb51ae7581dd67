"""Show pixels in a panel of a figure."""

import io
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from plotly import graph_objects as go

from smi.pages import data_url

# Smaller images are enlarged by a whole number, so that browsers do not blur them.
MIN_SIDE = 128  # pixels


def add_picture(figure: go.Figure, pixels: NDArray[np.uint8], **place: int) -> None:
    """Show uint8 [H, W, 3] as a PNG; the panel's axes reach from 0 to W and from 0 to H."""
    height, width = pixels.shape[:2]
    times = max(1, math.ceil(MIN_SIDE / height))
    large = pixels.repeat(times, axis=0).repeat(times, axis=1)
    buffer = io.BytesIO()
    Image.fromarray(large).save(buffer, "PNG")
    image = go.Image(
        source=data_url(buffer.getvalue(), "png"),
        x0=0.5 / times,
        y0=0.5 / times,
        dx=1 / times,
        dy=1 / times,
        hoverinfo="skip",
    )
    figure.add_trace(image, **place)
    bare: dict[str, Any] = {"visible": False, "showgrid": False, "constrain": "domain"}
    figure.update_xaxes(range=[0, width], **bare, **place)
    figure.update_yaxes(range=[height, 0], scaleratio=1, **bare, **place)
    axis = next(figure.select_xaxes(**place)).plotly_name
    figure.update_yaxes(scaleanchor=axis.replace("axis", ""), **place)
