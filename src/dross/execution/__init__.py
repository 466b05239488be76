"""How the passes over a model are run on a CPU or a GPU."""
