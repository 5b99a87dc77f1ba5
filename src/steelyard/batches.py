"""Batches as trees: counting, taking, joining and splitting samples.

A tree is any nesting of tuples, lists and mappings; what they contain in the end are its leaves. Some leaves hold
samples: tensors (along dimension 0), `Samples`, and tuples and lists of strings alone, because a `DataLoader` makes
such a list of the samples' names. All other leaves are shared by all samples: numbers, a string, `None`, a
0-dimensional tensor.
"""

import copy
import itertools
import operator
from collections import UserDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Tree = Any


class Samples(list[Any]):
    """A list whose items are samples, for what cannot be stacked: images of different sizes, boxes, graphs.

    A plain list is structure, like a tuple, because that is what a `DataLoader` makes of `(inputs, targets)`.

    >>> count_samples((Samples([torch.zeros(3, 8, 8), torch.zeros(3, 5, 7)]), torch.zeros(2)))
    2
    """


def count_samples(tree: Tree) -> int:
    """Return the number of samples in a tree.

    >>> count_samples((torch.zeros(4, 2), {"mask": torch.ones(4)}))
    4
    """
    if isinstance(tree, Tensor) and tree.dim() > 0:  # a shortcut: every step counts the samples of every domain
        return tree.shape[0]
    lengths = set()
    for leaf in _leaves(tree):
        if _holds_samples(leaf):
            lengths.add(_length(leaf))
        elif hasattr(leaf, "__array__") and not isinstance(leaf, Tensor):  # a NumPy array, for example
            raise TypeError(f"a batch must hold tensors; got {type(leaf).__name__}. torch.as_tensor makes one of it.")
    if len(lengths) != 1:
        fault = f"lengths {sorted(lengths)}" if lengths else "no tensor"
        raise ValueError(f"every part of a batch must hold the same number of samples; got {fault}.")
    return lengths.pop()


def take_samples(tree: Tree, rows: slice | Sequence[int]) -> Tree:
    """Return the samples at these rows, as a tree of the same structure.

    >>> take_samples({"x": torch.arange(4), "names": ["a", "b", "c", "d"]}, slice(1, 3))
    {'x': tensor([1, 2]), 'names': ['b', 'c']}
    """

    def take(leaf: Any) -> Any:
        if not _holds_samples(leaf):
            return leaf
        if isinstance(leaf, Tensor):
            return leaf[rows]
        chosen = leaf[rows] if isinstance(rows, slice) else [leaf[row] for row in rows]
        return type(leaf)(chosen)

    return _map(take, tree)


def can_join(trees: Sequence[Tree]) -> bool:
    """Return whether trees differ in nothing but the number and the values of their samples."""
    first = _signature(trees[0])
    return all(_signature(tree) == first for tree in trees[1:])


def join_samples(trees: Sequence[Tree]) -> Tree:
    """Return one tree with the samples of all, in order.

    >>> join_samples([(torch.zeros(1), ["a"]), (torch.ones(2), ["b", "c"])])
    (tensor([0., 1., 1.]), ['a', 'b', 'c'])
    """
    if len(trees) == 1:
        return trees[0]

    def join(*leaves: Any) -> Any:
        first = leaves[0]
        if not _holds_samples(first):
            return first
        if isinstance(first, Tensor):
            return torch.cat(leaves)
        return type(first)(itertools.chain.from_iterable(leaves))

    return _map(join, *trees)


def stack_samples(trees: Sequence[Tree]) -> Tree:
    """Return one tree whose tensors have a new first dimension, with one entry per tree. Other leaves are the first's.

    >>> stack_samples([(torch.zeros(2), "a"), (torch.ones(2), "a")])
    (tensor([[0., 0.],
            [1., 1.]]), 'a')
    """
    return _map_tensors(lambda *tensors: torch.stack(tensors), *trees)


def unstack_samples(tree: Tree, count: int) -> list[Tree]:
    """Undo a stack: return one tree for each entry of the tensors' first dimension."""
    return [_map_tensors(operator.itemgetter(entry), tree) for entry in range(count)]


def clone_samples(tree: Tree) -> Tree:
    """Return the same tree with tensors of its own."""
    return _map_tensors(Tensor.clone, tree)


def detach_samples(tree: Tree) -> Tree:
    """Return the same tree outside automatic differentiation."""
    return _map_tensors(Tensor.detach, tree)


def differentiable_samples(tree: Tree) -> tuple[Tree, list[Tensor]]:
    """Return the same tree with tensors to differentiate for, in the same memory, and a list of these tensors."""
    copies: list[Tensor] = []

    def prepare(tensor: Tensor) -> Tensor:
        if not (tensor.is_floating_point() or tensor.is_complex()):  # whole numbers have no derivative
            return tensor
        differentiable = tensor.detach().requires_grad_()
        copies.append(differentiable)
        return differentiable

    return _map_tensors(prepare, tree), copies


def split_samples(tree: Tree, sizes: Sequence[int]) -> list[Tree]:
    """Undo a join: return consecutive trees with these numbers of samples."""
    if len(sizes) == 1:
        return [tree]
    leaves = list(_leaves(tree))
    _check_outputs(tree, leaves, total=sum(sizes))
    parts_by_leaf = [_split_leaf(leaf, sizes) for leaf in leaves]
    # Zipped: the first part of every leaf, then the second part of every leaf, …
    return [_with_leaves(tree, parts) for parts in zip(*parts_by_leaf, strict=True)]


def _check_outputs(tree: Tree, leaves: Sequence[Any], *, total: int) -> None:
    """Refuse a model's output that does not hold one value per sample."""
    outputs = [leaf for leaf in leaves if isinstance(leaf, Tensor) or _holds_samples(leaf)]
    if not outputs:
        raise ValueError(
            f"a model's output must nest tuples, lists and dicts of tensors; got {type(tree).__name__}. "
            "Pass join=False to run the model once per domain."
        )
    for leaf in outputs:
        length: int | str = "one for all"  # of a 0-dimensional tensor: a mean over all samples, for example
        if _holds_samples(leaf):
            length = _length(leaf)
        if length != total:
            raise ValueError(
                f"a model run once for all domains must return one output per sample ({total}); got {length}. "
                "Pass join=False to run it once per domain."
            )


def _split_leaf(leaf: Any, sizes: Sequence[int]) -> Sequence[Any]:
    if isinstance(leaf, Tensor):
        # One operation for all parts: its backward pass joins their gradients once. Indexing would pad the gradient
        # of every part to full size and add these up.
        return leaf.unsafe_split_with_sizes(list(sizes))
    if not _holds_samples(leaf):
        return [leaf] * len(sizes)
    ends = itertools.accumulate(sizes)
    return [type(leaf)(leaf[end - size : end]) for size, end in zip(sizes, ends, strict=True)]


def split_by_domain(batch: Tree, labels: Tensor | Sequence[int | str], domains: Sequence[str]) -> dict[str, Tree]:
    """Turn a mixed batch with domain labels into a mapping of domain name to batch.

    Args:
        batch: for example `(inputs, targets)`.
        labels: for each sample the name of its domain, or the domain's index in `domains`.
        domains: the names of the domains; one that has no sample in the batch is left out of the mapping.

    >>> split_by_domain((torch.tensor([5, 6, 7]), torch.tensor([0, 1, 0])), ["b", "a", "b"], domains=("a", "b"))
    {'a': (tensor([6]), tensor([1])), 'b': (tensor([5, 7]), tensor([0, 0]))}
    """
    if isinstance(labels, Tensor):
        labels = labels.flatten().tolist()
    if len(labels) != count_samples(batch):
        raise ValueError(f"labels must hold one domain per sample ({count_samples(batch)}); got {len(labels)}.")
    rows_by_domain: defaultdict[str, list[int]] = defaultdict(list)
    for row, label in enumerate(labels):
        rows_by_domain[_domain_name(label, domains)].append(row)
    return {domain: take_samples(batch, rows_by_domain[domain]) for domain in domains if domain in rows_by_domain}


def _domain_name(label: int | str, domains: Sequence[str]) -> str:
    if isinstance(label, str):
        if label in domains:
            return label
    elif float(label).is_integer() and 0 <= label < len(domains):
        return domains[int(label)]
    raise ValueError(f"a domain label must be one of {tuple(domains)} or an index into them; got {label!r}.")


def _holds_samples(leaf: Any) -> bool:
    if isinstance(leaf, Tensor):
        return leaf.dim() > 0
    return isinstance(leaf, Samples) or _is_names(leaf)


def _length(leaf: Any) -> int:
    if isinstance(leaf, Tensor):
        return leaf.shape[0]  # several times faster than len(leaf)
    return len(leaf)


def _is_names(tree: Tree) -> bool:
    """Return whether this is a tuple or list of strings alone, which are samples' names."""
    return isinstance(tree, tuple | list) and len(tree) > 0 and all(isinstance(item, str) for item in tree)


def _is_structure(tree: Tree) -> bool:
    """Return whether this is a tuple or list that is not itself a leaf."""
    return isinstance(tree, tuple | list) and not isinstance(tree, Samples) and not _is_names(tree)


def _leaves(tree: Tree) -> Iterator[Any]:
    """Go through the leaves in the order in which `_map` visits them."""
    if isinstance(tree, Tensor):  # asked first because most leaves are tensors
        yield tree
    elif _is_structure(tree):
        for part in tree:
            yield from _leaves(part)
    elif isinstance(tree, Mapping):
        for part in tree.values():
            yield from _leaves(part)
    else:
        yield tree


def _with_leaves(tree: Tree, leaves: Iterable[Any]) -> Tree:
    """Return a tree of the same structure with other leaves, in the order of `_leaves`."""
    remaining = iter(leaves)
    return _map(lambda _: next(remaining), tree)


def _signature(tree: Tree) -> Any:
    """Return what must be equal for trees to be joined: structure, types, sizes of a sample and all shared leaves."""
    if isinstance(tree, Tensor):
        if tree.dim() == 0:
            return (tree.dtype, tree.device, tree.layout, "shared", tree.item())
        return (tree.dtype, tree.device, tree.layout, tree.shape[1:])
    if _is_structure(tree):
        return (type(tree), *map(_signature, tree))
    if isinstance(tree, Mapping):
        return (type(tree), {key: _signature(part) for key, part in tree.items()})
    if _holds_samples(tree):
        return type(tree)
    return tree


def _map(function: Callable[..., Any], first: Tree, *others: Tree) -> Tree:
    """Return a tree like the first, whose leaves are the function's values at the corresponding leaves of all trees."""
    if isinstance(first, Tensor):
        return function(first, *others)
    if _is_structure(first):
        parts = [_map(function, *corresponding) for corresponding in zip(first, *others, strict=True)]
        if hasattr(first, "_fields"):  # a named tuple takes its fields one by one
            return type(first)(*parts)
        return type(first)(parts)
    if isinstance(first, Mapping):
        values = {}
        for key in first:
            values[key] = _map(function, first[key], *[other[key] for other in others])
        return _mapping_like(first, values)
    return function(first, *others)


def _map_tensors(function: Callable[..., Tensor], *trees: Tree) -> Tree:
    """Do as `_map` does, but leave leaves that are not tensors as they are in the first tree."""

    def map_leaf(first: Any, *others: Any) -> Any:
        if not isinstance(first, Tensor):
            return first
        return function(first, *others)

    return _map(map_leaf, *trees)


def _mapping_like(mapping: Any, values: dict[str, Any]) -> Any:
    """Return a mapping of the same class (`OrderedDict`, tokenizers' encodings, models' outputs) with other values."""
    # Constructors differ, so a copy is filled. A class that is neither a `dict` nor a `UserDict` becomes a `dict`,
    # because a copy of it may share its values with the original.
    if type(mapping) is dict or not isinstance(mapping, dict | UserDict):
        return values
    filled = copy.copy(mapping)
    filled.update(values)
    return filled
