"""The paper's experiments and the datasets that they need. Not part of the package.

S. Hara, A. Nitanda, T. Maehara. Data Cleansing for Models Trained with SGD. NeurIPS 2019.

    python -m experiments.table1        Table 1: how well the influence is estimated
    python -m experiments.cleansing     Section 7.2: does removing what a method finds help?
    experiments.bounds                  Theorems 1 and 2 as numbers
"""
