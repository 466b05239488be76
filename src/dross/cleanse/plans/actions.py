"""What happens to an instance: the column `action` of `Project.instances`."""

KEEP, REMOVE, RELABEL = "keep", "remove", "relabel"
ACTIONS = (KEEP, REMOVE, RELABEL)
