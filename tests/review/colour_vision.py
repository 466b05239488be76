"""Colours as people with a colour vision deficiency see them, and how far two are apart."""

import re

import numpy as np

# Machado, Oliveira and Fernandes (2009), severity 1, for linear RGB.
SIMULATIONS = {
    "usual": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritanopia": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}
_TO_XYZ = np.array(
    [
        [0.4123908, 0.3575843, 0.1804808],
        [0.2126390, 0.7151687, 0.0721923],
        [0.0193308, 0.1191948, 0.9505322],
    ]
)


def read_palette(css: str) -> dict[str, str]:
    """{name: #rrggbb} of the custom properties in a piece of a style sheet."""
    found = re.findall(r"--([\w-]+):\s*(#[0-9a-f]{3,6})\b", css)
    return {name: "#" + "".join(2 * c for c in v[1:]) if len(v) == 4 else v for name, v in found}


def linear(colour: str) -> np.ndarray:
    """#rrggbb as linear RGB, [3]."""
    coded = np.array([int(colour[k : k + 2], 16) for k in (1, 3, 5)]) / 255
    return np.where(coded <= 0.04045, coded / 12.92, ((coded + 0.055) / 1.055) ** 2.4)


def see(colour: str, vision: str) -> np.ndarray:
    """The linear RGB that somebody with this vision sees, [3]."""
    return np.clip(SIMULATIONS[vision] @ linear(colour), 0, 1)


def to_lab(rgb: np.ndarray) -> np.ndarray:
    """Linear RGB as CIE Lab, [3]."""
    ratio = _TO_XYZ @ rgb / _TO_XYZ.sum(1)
    root = np.where(ratio > 216 / 24389, np.cbrt(ratio), (24389 / 27 * ratio + 16) / 116)
    x, y, z = root
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def distance(one: str, other: str, vision: str) -> float:
    """Delta E (CIE 1976): 2.3 is just noticeable."""
    return float(np.linalg.norm(to_lab(see(one, vision)) - to_lab(see(other, vision))))


def contrast(one: str, other: str, vision: str) -> float:
    """The ratio of luminances that WCAG asks for."""
    light, dark = sorted(_TO_XYZ[1] @ see(colour, vision) for colour in (one, other))[::-1]
    return float((light + 0.05) / (dark + 0.05))
