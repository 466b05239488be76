"""Cleaning for those who fine-tune a language model: from a file of chats to a better model.

It uses what `cleaning/` has (the project's folder, decisions, copies, plans, verdicts, export, the
report) and what `integrations/transformers/` has (recording, scores per token), and is above both.
transformers and peft are imported only when something is fine-tuned.
"""

from .._extras import install_command
from ..errors import InvalidInput, first_line

try:
    import accelerate  # noqa: F401
    import transformers  # noqa: F401
except ImportError as error:
    raise InvalidInput(
        f"Fine-tuning needs transformers and accelerate ({first_line(error)}): "
        f"{install_command('finetuning')}."
    ) from None
