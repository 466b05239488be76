"""What the benchmark of language models is made of: examples, models, trainings, comparisons."""
