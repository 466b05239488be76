"""dross beside the other libraries that score training instances: the same models and truth.

    pip install -c constraints.txt -r benchmarks/peers-requirements.txt
    pip install --no-deps -r benchmarks/peers-no-deps.txt
    DROSS_DATA=... python -m benchmarks.peers --quick
    DROSS_DATA=... python -m benchmarks.peers [--only MODEL ...] [--methods NAME ...]
    PYTHONPATH=src python -m benchmarks.peers --report docs/results

--quick takes about two minutes; --report writes the page, its table and its figure from what was
run. Each step is a process of its own: one that crashes or cannot be imported is written down with
its reason and stops nothing else. Results are kept in runs/peers as they finish; a run that was
interrupted goes on where it was.
"""
