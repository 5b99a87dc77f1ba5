"""Batches as trees: counting, taking and joining samples.

A tree is any nesting of tuples, lists and mappings of leaves. Leaves that hold samples are tensors (dimension 0),
`Samples`, and tuples and lists of strings alone, as a `DataLoader` makes them of each sample's name. Everything else
(numbers, a string, `None`, a 0-dimensional tensor) is shared by all samples.
"""

import copy
from collections import UserDict
from collections.abc import Callable, Iterable, Mapping, Sequence
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
    """How many samples a tree holds.

    >>> count_samples((torch.zeros(4, 2), {"mask": torch.ones(4)}))
    4
    """
    if isinstance(tree, Tensor) and tree.dim():  # counted at every step for every domain, so the shortest way
        return tree.shape[0]
    leaves = list(_leaves(tree))
    if arrays := [leaf for leaf in leaves if not isinstance(leaf, Tensor) and hasattr(leaf, "__array__")]:
        raise TypeError(f"a batch must hold tensors; got {type(arrays[0]).__name__}. torch.as_tensor makes one of it.")
    lengths = {_length(leaf) for leaf in leaves if _holds_samples(leaf)}
    if len(lengths) != 1:
        found = f"lengths {sorted(lengths)}" if lengths else "no tensor"
        raise ValueError(f"every part of a batch must hold the same number of samples; got {found}.")
    return lengths.pop()


def take_samples(tree: Tree, chosen: slice | Sequence[int]) -> Tree:
    """The chosen samples of a tree, as a tree of the same structure.

    >>> take_samples({"x": torch.arange(4), "names": ["a", "b", "c", "d"]}, slice(1, 3))
    {'x': tensor([1, 2]), 'names': ['b', 'c']}
    """

    def take(leaf: Any) -> Any:
        if not _holds_samples(leaf):
            return leaf
        if isinstance(leaf, Tensor):
            return leaf[chosen]
        return type(leaf)(leaf[chosen] if isinstance(chosen, slice) else [leaf[i] for i in chosen])

    return _map(take, tree)


def can_join(trees: Sequence[Tree]) -> bool:
    """Whether trees differ in nothing but the number and the values of their samples."""
    shapes = [_shape(tree) for tree in trees]
    return all(shape == shapes[0] for shape in shapes[1:])


def join_samples(trees: Sequence[Tree]) -> Tree:
    """One tree with the samples of all, in order.

    >>> join_samples([(torch.zeros(1), ["a"]), (torch.ones(2), ["b", "c"])])
    (tensor([0., 1., 1.]), ['a', 'b', 'c'])
    """
    if len(trees) == 1:
        return trees[0]

    def join(*leaves: Any) -> Any:
        if not _holds_samples(leaves[0]):
            return leaves[0]
        if isinstance(leaves[0], Tensor):
            return torch.cat(leaves)
        return type(leaves[0])(item for leaf in leaves for item in leaf)

    return _map(join, *trees)


def stack_samples(trees: Sequence[Tree]) -> Tree:
    """One tree whose tensors have a new first dimension, one entry for each of the trees; other leaves are the first's.

    >>> stack_samples([(torch.zeros(2), "a"), (torch.ones(2), "a")])
    (tensor([[0., 0.],
            [1., 1.]]), 'a')
    """

    def stack(*leaves: Any) -> Any:
        return torch.stack(leaves) if isinstance(leaves[0], Tensor) else leaves[0]

    return _map(stack, *trees)


def unstack_samples(tree: Tree, count: int) -> list[Tree]:
    """Undo a stack: one tree for each entry of the tensors' first dimension."""

    def entry(index: int) -> Tree:
        return _map(lambda leaf: leaf[index] if isinstance(leaf, Tensor) else leaf, tree)

    return [entry(index) for index in range(count)]


def clone_samples(tree: Tree) -> Tree:
    """The same tree with tensors of its own."""
    return _map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, tree)


def detach_samples(tree: Tree) -> Tree:
    """The same tree outside automatic differentiation."""
    return _map(lambda leaf: leaf.detach() if isinstance(leaf, Tensor) else leaf, tree)


def differentiable_samples(tree: Tree) -> tuple[Tree, list[Tensor]]:
    """The same tree with copies to differentiate for; and these copies."""
    copies: list[Tensor] = []

    def prepare(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or not (leaf.is_floating_point() or leaf.is_complex()):
            return leaf
        copies.append(leaf.detach().clone().requires_grad_())
        return copies[-1]

    return _map(prepare, tree), copies


def split_samples(tree: Tree, sizes: Sequence[int]) -> list[Tree]:
    """Undo a join: consecutive trees of the given numbers of samples."""
    total = sum(sizes)
    if len(sizes) == 1:
        return [tree]
    leaves = list(_leaves(tree))
    if not any(isinstance(leaf, Tensor) or _holds_samples(leaf) for leaf in leaves):
        raise ValueError(
            f"a model's output must nest tuples, lists and dicts of tensors; got {type(tree).__name__}. "
            "Pass join=False to run the model once per domain."
        )
    for leaf in leaves:
        found = _length(leaf) if _holds_samples(leaf) else "one for all" if isinstance(leaf, Tensor) else total
        if found != total:
            raise ValueError(
                f"a model run once for all domains must return one output per sample ({total}); got {found}. "
                "Pass join=False to run it once per domain."
            )
    # One operation for all parts of a tensor: the gradient is joined once, not padded once for each part.
    parted = {id(leaf): leaf.unsafe_split_with_sizes(list(sizes)) for leaf in leaves if isinstance(leaf, Tensor)}
    starts = [sum(sizes[:i]) for i in range(len(sizes))]

    def part(number: int) -> Tree:
        chosen = slice(starts[number], starts[number] + sizes[number])
        return _map(
            lambda leaf: parted[id(leaf)][number] if isinstance(leaf, Tensor) else take_samples(leaf, chosen), tree
        )

    return [part(number) for number in range(len(sizes))]


def split_by_domain(batch: Tree, labels: Tensor | Sequence[int | str], domains: Sequence[str]) -> dict[str, Tree]:
    """Turn a mixed batch with domain labels into a mapping of domain name to batch.

    Args:
        batch: for example `(inputs, targets)`.
        labels: for each sample the name of its domain, or the domain's index in `domains`.
        domains: the names of the domains; one that has no sample in the batch is left out of the mapping.

    >>> split_by_domain((torch.tensor([5, 6, 7]), torch.tensor([0, 1, 0])), ["b", "a", "b"], domains=("a", "b"))
    {'a': (tensor([6]), tensor([1])), 'b': (tensor([5, 7]), tensor([0, 0]))}
    """
    listed = labels.flatten().tolist() if isinstance(labels, Tensor) else list(labels)
    if len(listed) != count_samples(batch):
        raise ValueError(f"labels must hold one domain per sample ({count_samples(batch)}); got {len(listed)}.")
    names = [_domain_name(label, domains) for label in listed]
    chosen = {domain: [i for i, name in enumerate(names) if name == domain] for domain in domains}
    return {domain: take_samples(batch, indices) for domain, indices in chosen.items() if indices}


def _domain_name(label: int | str, domains: Sequence[str]) -> str:
    if isinstance(label, str):
        if label in domains:
            return label
    elif float(label).is_integer() and 0 <= label < len(domains):
        return domains[int(label)]
    raise ValueError(f"a domain label must be one of {tuple(domains)} or an index into them; got {label!r}.")


def _holds_samples(leaf: Any) -> bool:
    return (isinstance(leaf, Tensor) and leaf.dim() > 0) or isinstance(leaf, Samples) or _are_names(leaf)


def _length(leaf: Any) -> int:
    return leaf.shape[0] if isinstance(leaf, Tensor) else len(leaf)


def _are_names(tree: Tree) -> bool:
    return isinstance(tree, tuple | list) and bool(tree) and all(isinstance(item, str) for item in tree)


def _is_sequence(tree: Tree) -> bool:
    """Whether a tuple or list is structure."""
    return isinstance(tree, tuple | list) and not isinstance(tree, Samples) and not _are_names(tree)


def _leaves(tree: Tree) -> Iterable[Any]:
    if isinstance(tree, Tensor):  # the most of them
        yield tree
    elif _is_sequence(tree):
        for part in tree:
            yield from _leaves(part)
    elif isinstance(tree, Mapping):
        for part in tree.values():
            yield from _leaves(part)
    else:
        yield tree


def _shape(tree: Tree) -> Any:
    """What must agree for trees to be joined."""
    if isinstance(tree, Tensor):
        sizes = tree.shape[1:] if tree.dim() else ("shared", tree.item())
        return (tree.dtype, tree.device, tree.layout, sizes)
    if _is_sequence(tree):
        return (type(tree), *(_shape(part) for part in tree))
    if isinstance(tree, Mapping):
        return (type(tree), {key: _shape(part) for key, part in tree.items()})
    if isinstance(tree, Samples) or _are_names(tree):
        return type(tree)
    return tree


def _map(function: Callable[..., Any], first: Tree, *rest: Tree) -> Tree:
    if isinstance(first, Tensor):
        return function(first, *rest)
    if _is_sequence(first):
        parts = [_map(function, *items) for items in zip(first, *rest, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    if isinstance(first, Mapping):
        mapped = {key: _map(function, first[key], *(other[key] for other in rest)) for key in first}
        return _refilled(first, mapped) if isinstance(first, dict | UserDict) and type(first) is not dict else mapped
    return function(first, *rest)


def _refilled(like: Any, items: dict[str, Any]) -> Any:
    """A mapping of the same class (OrderedDict, a tokenizer's encoding, a model's output) with other values."""
    filled = copy.copy(like)
    for key, value in items.items():
        filled[key] = value
    return filled
