"""Chats as the page shows them: their tokens with the effect of each."""

from functools import cached_property

import numpy as np

from ..cleaning.project import Project

_MAX_EXCERPT = 420  # characters, in the list
_MAX_TEXT = 20_000  # characters, in the panel
_STRONG = 98  # the percentile of the effects of tokens that has the strongest colour

Token = tuple[str, float | None]  # its text, and its effect in percent; None: it is not learned


class ChatTokens:
    """The tokens of a project's training examples."""

    def __init__(self, project: Project):
        self.project = project

    @cached_property
    def scale(self) -> float:
        """The effect in percent that has the strongest colour."""
        effects = np.concatenate([np.asarray(row, float) for row in self.project.tokens["effects"]])
        sizes = np.abs(100 * effects[~np.isnan(effects)])
        return float(np.percentile(sizes, _STRONG)) if len(sizes) else 0.0

    def excerpt(self, id: int) -> list[Token]:
        """What surrounds the beginning of the first answer."""
        tokens = self._read(id)
        first = next((k for k, (_, effect) in enumerate(tokens) if effect is not None), 0)
        start = 0
        while start < first and sum(len(text) for text, _ in tokens[start:first]) > 200:
            start += 1
        shown = _cut(tokens[start:], _MAX_EXCERPT)
        head: list[Token] = [("… ", None)] if start else []
        return head + shown + ([(" …", None)] if start + len(shown) < len(tokens) else [])

    def whole(self, id: int) -> list[Token]:
        """Everything, up to a length that a browser shows at once."""
        return _cut(self._read(id), _MAX_TEXT)

    def _read(self, id: int) -> list[Token]:
        row = self.project.tokens.loc[id]
        number = lambda effect: None if effect != effect else float(f"{100 * effect:.3g}")
        return [(str(text), number(effect)) for text, effect in zip(row["texts"], row["effects"])]


def _cut(tokens: list[Token], letters: int) -> list[Token]:
    kept, length = [], 0
    for text, effect in tokens:
        length += len(text)
        if length > letters:
            break
        kept.append((text, effect))
    return kept
