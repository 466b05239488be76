"""Run a model with parameters that are gathered where its code reads them."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

from torch import Tensor, nn

from ..errors import NotSupported
from .gathering import Unit
from .shard_ranks import ShardReducer

Reader = Callable[[Unit, str], Tensor]


class _ReadThrough(dict):
    """The `_parameters` of a module while it runs: those in training are read from elsewhere.

    A module reads a parameter by its name, and gets what `read` gives for it. Code that iterates
    over all of its parameters sees the module's own, which have the right shapes and types.
    """

    def __init__(self, own: Mapping, unit: Unit, names: Mapping[str, str], read: Reader):
        super().__init__(own)
        self.unit, self.names, self.read = unit, names, read

    def __getitem__(self, key: str):
        name = self.names.get(key)
        return super().__getitem__(key) if name is None else self.read(self.unit, name)


class Units:
    """Which of a model's parameters are gathered together: those of the same module."""

    def __init__(self, model: nn.Module, ranks: ShardReducer):
        """Look through the modules.

        Raises:
            NotSupported: a module keeps its parameters somewhere else as well.
        """
        whole = ranks.layout.layout
        known = list(zip(whole.names, whole.shapes, ranks.layout.chunks))
        parts = zip(known, ranks.layout.sizes(ranks.rank))
        self._facts = {name: (shape, chunk, n) for (name, shape, chunk), n in parts}
        self._ranks = ranks
        self.single = {name: self._unit((name,)) for name in whole.names}
        name_of = {id(p): name for name, p in model.named_parameters()}
        self._wrapped = [module for module in model.modules() if hasattr(module, "_get_fsdp_state")]
        self._modules: list[tuple[nn.Module, Unit, dict[str, str]]] = []
        for place, module in model.named_modules():
            held = {
                key: name_of[id(p)]
                for key, p in module._parameters.items()
                if p is not None and name_of.get(id(p)) in self._facts
            }
            if not held:
                continue
            if isinstance(module, nn.RNNBase):
                raise NotSupported(
                    f"'{place}' is a {type(module).__name__}, which keeps a list of its weights "
                    "that cannot be gathered piece by piece. Retrace with group= and without "
                    "sharded=True."
                )
            self._modules.append((module, self._unit(tuple(dict.fromkeys(held.values()))), held))

    def _unit(self, names: tuple[str, ...]) -> Unit:
        shapes, chunks, sizes = zip(*(self._facts[name] for name in names))
        return Unit(names, shapes, chunks, sizes, self._ranks)

    @contextmanager
    def reading(self, read: Reader) -> Iterator[None]:
        """Inside, modules read their parameters in training by `read`, and are not wrapped."""
        with ExitStack() as stack:
            for module, unit, held in self._modules:
                own = module._parameters
                module.__dict__["_parameters"] = _ReadThrough(own, unit, held, read)
                stack.callback(module.__dict__.__setitem__, "_parameters", own)
            for module in self._wrapped:
                _leave_out_hooks(module, stack)
            yield


def _leave_out_hooks(module: nn.Module, stack: ExitStack) -> None:
    """Remove the hooks that `fully_shard` put on a module: they would gather by themselves."""
    for kind in ("_forward_pre_hooks", "_forward_hooks"):
        hooks = getattr(module, kind)
        own = {key: hook for key, hook in hooks.items() if not _is_of_fsdp(hook)}
        if len(own) < len(hooks):
            module.__dict__[kind] = type(hooks)(own)
            stack.callback(module.__dict__.__setitem__, kind, hooks)


def _is_of_fsdp(hook: Callable) -> bool:
    return (getattr(hook, "__module__", None) or "").startswith("torch.distributed.fsdp")
