"""Arrays as PNG files, inline where a page has to be one file."""

import base64
import io

import numpy as np

from ..errors import BadInput


def png(picture: np.ndarray) -> bytes:
    """uint8 [H, W] or [H, W, 3] -> the bytes of a PNG file."""
    try:
        from PIL import Image
    except ImportError:
        raise BadInput(
            "Pictures need Pillow: pip install pillow. The results themselves are kept."
        ) from None
    out = io.BytesIO()
    Image.fromarray(picture).save(out, "png", optimize=True)
    return out.getvalue()


def inline(picture: np.ndarray) -> str:
    """A data: address that holds the picture itself."""
    return "data:image/png;base64," + base64.b64encode(png(picture)).decode()
