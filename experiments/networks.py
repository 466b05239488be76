"""The paper's networks."""

from itertools import pairwise

from torch import nn


def dense(*widths: int) -> nn.Sequential:
    """Linear layers with ReLU between them.

    dense(62, 1) is logistic regression, dense(62, 8, 8, 1) the network of Section 7.1.
    """
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def mnist_cnn() -> nn.Sequential:
    """Section 7.2, MNIST: 13,750 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 20, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(20, 20, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(320, 10),
    )


def cifar10_cnn() -> nn.Sequential:
    """Section 7.2, CIFAR10: three blocks.

    Every convolution keeps the size of its input; BatchNorm follows the first of each block.
    """
    layers: list[nn.Module] = []
    for before, after in ((3, 32), (32, 64), (64, 128)):
        layers += [
            nn.Conv2d(before, after, 3, padding=1),
            nn.BatchNorm2d(after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(2048, 10))


def autoencoder(channels: int, wide: int, narrow: int) -> nn.Sequential:
    """The outlier baseline of Section 7.2.

    Two 3x3 convolutions with pooling down, three transposed convolutions up, tanh. The paper's
    figure gives no padding; with 1 in the second layer up the output has the size of the input.
    """
    return nn.Sequential(
        nn.Conv2d(channels, wide, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(wide, narrow, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.ConvTranspose2d(narrow, narrow, 5, stride=2),
        nn.ReLU(),
        nn.ConvTranspose2d(narrow, wide, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.ConvTranspose2d(wide, channels, 3),
        nn.Tanh(),
    )
