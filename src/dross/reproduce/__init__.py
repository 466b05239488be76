"""The paper's experiments, run again: `dross reproduce table1`. Imports dross; nothing of the core imports it."""
