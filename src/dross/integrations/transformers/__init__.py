"""Record a run of transformers' Trainer, or of any trainer made from it (trl's SFTTrainer).

from dross.integrations.transformers import RecordingTrainer

trainer = RecordingTrainer(model, args, train_dataset=train, path="runs/x")
trainer.train()
scores = trainer.recorded_run().influence(trainer.loss_of(validation))
"""

from ..._extras import install_command

try:
    import transformers as _transformers  # noqa: F401
except ImportError as error:
    raise ImportError(
        "dross.integrations.transformers needs transformers and accelerate: "
        f"{install_command('transformers')}."
    ) from error

from .losses import InstanceLosses, loss_of
from .tokens import TokenRun, per_token
from .trainer import RecordingTrainer, recording

__all__ = [
    "InstanceLosses",
    "RecordingTrainer",
    "TokenRun",
    "loss_of",
    "per_token",
    "recording",
]
