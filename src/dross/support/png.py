"""Arrays as PNG files, or as data: addresses for pages that must be one file."""

import base64
import io

import numpy as np

from ..errors import InvalidInput


def encode_png(picture: np.ndarray) -> bytes:
    """Return the bytes of a PNG file for a picture, uint8 [H, W] or [H, W, 3]."""
    try:
        from PIL import Image
    except ImportError:
        raise InvalidInput(
            "Pictures need Pillow: pip install pillow. The results themselves are kept."
        ) from None
    out = io.BytesIO()
    Image.fromarray(picture).save(out, "png", optimize=True)
    return out.getvalue()


def encode_data_url(picture: np.ndarray) -> str:
    """Return a data: address that holds the picture itself."""
    return "data:image/png;base64," + base64.b64encode(encode_png(picture)).decode()
