"""Data sets by name: `dross.datasets.load("mnist")`.

digits, breast_cancer and wine are inside scikit-learn. adult, 20news, mnist, fashion-mnist and
cifar10 are looked up in the folder that DROSS_DATA names, then in the cache, and then fetched from
their public homes. What the paper does to each set before training is in `dross.datasets.paper`.
"""

from .sets import NAMES, DataSet, load

__all__ = ["NAMES", "DataSet", "load"]
