"""The paper's experiments, run again: `dross reproduce table1`, `dross reproduce cleansing`."""
