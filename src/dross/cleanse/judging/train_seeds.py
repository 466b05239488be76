"""Train the project's own models on everything, on the edited data, and on the control's."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ..learning.recipe import Recipe
from ..learning.train_many import ModelSpec, train_many
from .edited_data import NO_EDITS, EncodedEdits, SeedOfThree


@dataclass(frozen=True)
class TrainSeeds:
    """Trains, in any process, the three models of some seeds: everything, edited, control."""

    recipe: Recipe
    x: Tensor
    y: Tensor
    test: Tensor
    edits: EncodedEdits
    seeds: int
    progress: bool

    def __call__(self, piece: Sequence[SeedOfThree]) -> dict[str, Tensor]:
        """What the models say of the test part: [seeds, 3, test, outputs]."""
        models = []
        for _, seed, control in piece:
            models += [self._specify(seed, edits) for edits in (NO_EDITS, self.edits, control)]
        what = f"seeds {piece[0].number + 1} to {piece[-1].number + 1} of {self.seeds}"
        trained = train_many(self.recipe, self.x, self.y, models, what=what, progress=self.progress)
        outputs = trained.outputs(self.test)
        return {"outputs": outputs.reshape(len(piece), 3, *outputs.shape[1:])}

    def _specify(self, seed: int, edits: EncodedEdits) -> ModelSpec:
        y = None if edits.labels is None else edits.relabel(self.y)
        return ModelSpec(seed, edits.left(len(self.y)), self.recipe.rate, y)
