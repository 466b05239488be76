"""What is to be removed or given another label: what was decided, what is suggested, or so many of a list."""

from dataclasses import dataclass

import numpy as np

from ..errors import BadInput
from .inputs.source import MIN_INSTANCES
from .project import Project


@dataclass(frozen=True)
class Change:
    """What is different in the training data that is judged."""

    what: str
    removed: np.ndarray
    relabelled: dict[int, str]

    def __len__(self) -> int:
        return len(self.removed) + len(self.relabelled)


def chosen(project: Project, remove: int | None, relabel: int | None, decisions: bool) -> Change:
    instances, count = project.instances, len(project.instances)
    for what, value in (("remove", remove), ("relabel", relabel)):
        if value is not None and not 0 < value < count:
            raise BadInput(f"--{what} must lie between 1 and {count - 1}, not {value}.")
    if relabel is not None or remove is not None:
        suspects = (
            instances[instances["mislabel_rank"] >= 0]
            .sort_values("mislabel_rank")
            .head(relabel or 0)
        )
        renamed = {int(k): str(label) for k, label in suspects["prediction"].items()}
        harmful = instances.sort_values("harm_rank").index.to_numpy()[: remove or 0]
        both = np.isin(harmful, list(renamed))
        words = [f"{len(harmful)} most harmful removed"] * bool(remove) + [
            f"{len(renamed)} most probably mislabelled relabelled"
        ] * bool(relabel)
        if both.any():
            words.append(f"{int(both.sum())} that are in both lists only relabelled")
        return Change(", ".join(words), harmful[~both], renamed)
    made = project.decisions.current()
    removed = np.array([k for k, (action, _) in made.items() if action == "remove"], dtype=np.int64)
    renamed = {k: str(label) for k, (action, label) in made.items() if action == "relabel"}
    if len(removed) > count - MIN_INSTANCES // 2:
        raise BadInput(
            f"{len(removed)} of {count} training instances are removed: too few are left to train on. Undo some of it."
        )
    if len(removed) or renamed:
        return Change("decisions", removed, renamed)
    if decisions:
        raise BadInput(
            f"Nothing has been removed or relabelled on the page yet. Decide with dross review {project.folder}, or pass --remove and a number."
        )
    m = project.about["suggested"]["m"]
    if m == 0:
        raise BadInput(
            f"Nothing has been decided, and nothing is suggested: {project.about['suggested']['reason']}. To do it anyway, pass --remove and a number."
        )
    return Change(
        f"the suggested {m} removed", instances.sort_values("harm_rank").index.to_numpy()[:m], {}
    )
