"""Pixels in figures."""

import base64
import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from plotly import graph_objects as go

LEAST = 128  # pixels of a side: smaller images are enlarged by a whole number, so that browsers do not blur them


def add_picture(figure: go.Figure, pixels: NDArray[np.uint8], **where: int) -> None:
    """uint8 [H, W, 3] as a PNG in a panel, whose axes become its sides, 0 to W and H."""
    height, width = pixels.shape[:2]
    times = max(1, -(-LEAST // height))
    large = pixels.repeat(times, axis=0).repeat(times, axis=1)
    buffer = io.BytesIO()
    Image.fromarray(large).save(buffer, "PNG")
    source = f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
    figure.add_trace(
        go.Image(
            source=source,
            x0=0.5 / times,
            y0=0.5 / times,
            dx=1 / times,
            dy=1 / times,
            hoverinfo="skip",
        ),
        **where,
    )
    bare: dict[str, Any] = {"visible": False, "showgrid": False, "constrain": "domain"}
    figure.update_xaxes(range=[0, width], **bare, **where)
    figure.update_yaxes(range=[height, 0], scaleratio=1, **bare, **where)
    axis = next(figure.select_xaxes(**where)).plotly_name
    figure.update_yaxes(scaleanchor=axis.replace("axis", ""), **where)
