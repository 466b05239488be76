"""Train the project's own models on everything, on the edited data, and on the control's."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ..learning.edited_data import NO_EDITS, EncodedEdits
from ..learning.recipe import Recipe
from ..learning.train_many import train_many
from .seeds import SeedOfThree


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
        models = [
            edits.specify(seed, self.y, self.recipe.rate)
            for _, seed, control in piece
            for edits in (NO_EDITS, self.edits, control)
        ]
        what = f"seeds {piece[0].number + 1} to {piece[-1].number + 1} of {self.seeds}"
        trained = train_many(self.recipe, self.x, self.y, models, what=what, progress=self.progress)
        outputs = trained.outputs(self.test)
        return {"outputs": outputs.reshape(len(piece), 3, *outputs.shape[1:])}
